package store

import "bytes"

// Entry is the stored value of a module's key: the module's PTX, and the machine code that
// assemblers and drivers made from it.
type Entry struct {
	// Label describes the module in listings of the cache, such as the kernel's name
	// and tile. It is not part of the key.
	Label string
	// PTX is the module's text.
	PTX []byte
	// Images holds machine code, with at most one image for each producer. The most recently
	// stored image is first. Images may be empty.
	Images []Image
}

// Image is machine code made from an entry's PTX.
type Image struct {
	// Producer is the name and version of the program that made the image: "ptxas
	// 13.0.88", "driver 13000 580.95.05".
	Producer string
	// Code is the machine code for the driver.
	Code []byte
	// Log is the producer's output.
	Log string
}

// MaxImages limits the number of images of an entry, which would otherwise grow with every
// driver update.
const MaxImages = 8

// Image returns the machine code that a producer made, and reports whether there is any.
func (e Entry) Image(producer string) (Image, bool) {
	for _, im := range e.Images {
		if im.Producer == producer {
			return im, true
		}
	}
	return Image{}, false
}

// Merge returns e, with the images of old added whose producers e lacks. The result has the
// first image of each producer, and at most MaxImages in all. If the PTX of old differs, its
// images are left out.
func (e Entry) Merge(old Entry) Entry {
	candidates := e.Images
	if bytes.Equal(e.PTX, old.PTX) {
		candidates = append(candidates[:len(candidates):len(candidates)], old.Images...)
	}
	merged := Entry{Label: e.Label, PTX: e.PTX}
	if merged.Label == "" {
		merged.Label = old.Label
	}
	for _, im := range candidates {
		if _, have := merged.Image(im.Producer); !have && len(merged.Images) < MaxImages {
			merged.Images = append(merged.Images, im)
		}
	}
	return merged
}

// Covers reports whether e already has everything that merging other into it could add.
func (e Entry) Covers(other Entry) bool {
	if !bytes.Equal(e.PTX, other.PTX) {
		return false
	}
	for _, im := range other.Images {
		have, ok := e.Image(im.Producer)
		if !ok || have.Log != im.Log || !bytes.Equal(have.Code, im.Code) {
			return false
		}
	}
	return true
}
