package cache

import (
	"fmt"

	"sonicmoe/internal/store"
)

// choiceKey returns the Key that names the file of a choice. The field "choice" makes it differ
// from a module's Key.
func choiceKey(key string) store.Key { return store.NewKey([]byte("choice"), []byte(key)) }

// encodeEntry returns the content of the file of an entry.
func encodeEntry(key store.Key, e store.Entry) ([]byte, error) {
	fields := [][]byte{[]byte(e.Label), e.PTX}
	for _, im := range e.Images {
		fields = append(fields, []byte(im.Producer), im.Code, []byte(im.Log))
	}
	return seal(store.KindModule, key, fields...)
}

// decodeEntry decodes the content of an entry's file. The entry shares the memory of data.
func decodeEntry(data []byte, key store.Key) (store.Entry, error) {
	fields, err := unseal(data, store.KindModule, key)
	if err != nil {
		return store.Entry{}, err
	}
	if len(fields) < 2 || (len(fields)-2)%3 != 0 {
		return store.Entry{}, fmt.Errorf("%w: %d fields, a module has 2 and 3 for each image", errDamaged, len(fields))
	}
	e := store.Entry{Label: string(fields[0]), PTX: fields[1]}
	for f := fields[2:]; len(f) > 0; f = f[3:] {
		producer := string(f[0])
		if _, twice := e.Image(producer); twice {
			return store.Entry{}, fmt.Errorf("%w: two images of producer %q", errDamaged, producer)
		}
		e.Images = append(e.Images, store.Image{Producer: producer, Code: f[1], Log: string(f[2])})
	}
	return e, nil
}

// encodeChoice returns the content of the file of a choice.
func encodeChoice(key string, value []byte) ([]byte, error) {
	return seal(store.KindChoice, choiceKey(key), []byte(key), value)
}

// decodeChoice decodes the content of a choice's file. It returns the key and the value, which
// share the memory of data. name is the Key in the file's name.
func decodeChoice(data []byte, name store.Key) (key string, value []byte, err error) {
	fields, err := unseal(data, store.KindChoice, name)
	if err != nil {
		return "", nil, err
	}
	if len(fields) != 2 {
		return "", nil, fmt.Errorf("%w: %d fields, a choice has 2", errDamaged, len(fields))
	}
	key = string(fields[0])
	if choiceKey(key) != name {
		return "", nil, fmt.Errorf("%w: holds the choice %q, stored under another name", errDamaged, key)
	}
	return key, fields[1], nil
}
