package moe

// SizesOn are the sizes of a layer on a chip with so many multiprocessors,
// without a device.
func SizesOn(c Config, sms, tokens int) Sizes {
	return (&Layer{config: c, sms: sms}).Sizes(tokens)
}
