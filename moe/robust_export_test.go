package moe

import "sonicmoe/moe/internal/registry"

// SizesOn returns the sizes of a layer on a chip with sms multiprocessors, without
// a device.
func SizesOn(c Config, sms, tokens int) Sizes {
	s, err := (&Layer{of: registry.Layer{Config: c}, sms: sms}).Sizes(tokens)
	if err != nil {
		panic(err)
	}
	return s
}
