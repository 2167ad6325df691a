package cache

import (
	"bytes"
	"fmt"
)

// Entry is what is stored under a module's key: the PTX and the machine code
// that some assemblers and drivers made of it.
type Entry struct {
	// Label is free text for people who list the cache, such as the kernel's
	// name and tile. It is not part of the key.
	Label string
	// PTX is the module's text.
	PTX []byte
	// Images holds machine code, at most one per producer, the most recently
	// stored first. It may be empty.
	Images []Image
}

// Image is machine code made of an entry's PTX.
type Image struct {
	// Producer names the program that made it, with its version:
	// "ptxas 13.0.88", "driver 13000 580.95.05".
	Producer string
	// Code is what the driver loads.
	Code []byte
	// Log is what the producer said.
	Log string
}

// maxImages bounds an entry's growth over years of driver updates.
const maxImages = 8

// Image returns the machine code of one producer.
func (e Entry) Image(producer string) (Image, bool) {
	for _, im := range e.Images {
		if im.Producer == producer {
			return im, true
		}
	}
	return Image{}, false
}

// merge returns e with the images of old appended whose producers e lacks,
// the first of each producer, and at most maxImages of them. Images of another
// PTX text are worth nothing and are left out.
func (e Entry) merge(old Entry) Entry {
	candidates := e.Images
	if bytes.Equal(e.PTX, old.PTX) {
		candidates = append(candidates[:len(candidates):len(candidates)], old.Images...)
	}
	merged := Entry{Label: e.Label, PTX: e.PTX}
	if merged.Label == "" {
		merged.Label = old.Label
	}
	for _, im := range candidates {
		if _, have := merged.Image(im.Producer); !have && len(merged.Images) < maxImages {
			merged.Images = append(merged.Images, im)
		}
	}
	return merged
}

// covers reports whether storing other on top of e would add nothing.
func (e Entry) covers(other Entry) bool {
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

// encodeEntry is the file of an entry.
func encodeEntry(key Key, e Entry) ([]byte, error) {
	fields := [][]byte{[]byte(e.Label), e.PTX}
	for _, im := range e.Images {
		fields = append(fields, []byte(im.Producer), im.Code, []byte(im.Log))
	}
	return seal(KindModule, key, fields...)
}

// decodeEntry reads the file of an entry. The entry aliases data.
func decodeEntry(data []byte, key Key) (Entry, error) {
	fields, err := unseal(data, KindModule, key)
	if err != nil {
		return Entry{}, err
	}
	if len(fields) < 2 || (len(fields)-2)%3 != 0 {
		return Entry{}, fmt.Errorf("%w: %d fields, a module has 2 and 3 for each image", ErrDamaged, len(fields))
	}
	e := Entry{Label: string(fields[0]), PTX: fields[1]}
	for f := fields[2:]; len(f) > 0; f = f[3:] {
		producer := string(f[0])
		if _, twice := e.Image(producer); twice {
			return Entry{}, fmt.Errorf("%w: two images of producer %q", ErrDamaged, producer)
		}
		e.Images = append(e.Images, Image{Producer: producer, Code: f[1], Log: string(f[2])})
	}
	return e, nil
}

// encodeChoice is the file of a choice.
func encodeChoice(key string, value []byte) ([]byte, error) {
	return seal(KindChoice, choiceKey(key), []byte(key), value)
}

// decodeChoice reads the file of a choice and returns its key and value, which
// alias data. name is the key that the file is stored under.
func decodeChoice(data []byte, name Key) (key string, value []byte, err error) {
	fields, err := unseal(data, KindChoice, name)
	if err != nil {
		return "", nil, err
	}
	if len(fields) != 2 {
		return "", nil, fmt.Errorf("%w: %d fields, a choice has 2", ErrDamaged, len(fields))
	}
	key = string(fields[0])
	if choiceKey(key) != name {
		return "", nil, fmt.Errorf("%w: holds the choice %q, stored under another's name", ErrDamaged, key)
	}
	return key, fields[1], nil
}
