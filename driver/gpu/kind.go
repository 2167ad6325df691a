package gpu

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"sonicmoe/driver"
)

// Kind is a kind of device that package driver/open opens by name.
type Kind struct {
	// Name is the name of the kind: letters, no colon.
	Name string
	// Numbered reports whether a device number may follow the name: "cuda:1".
	Numbered bool
	// Open opens the device of that number, counted from 0.
	Open func(ctx context.Context, number int) (driver.Device, error)
	// Count returns the number of devices, 0 if opening the first will return the
	// reason.
	Count func() (int, error)
}

var (
	kindsMu sync.RWMutex
	kinds   []Kind
	// opened are the kinds that package open has itself.
	opened = []string{"cuda", "emulated"}
)

// Register adds a kind of device to those that package driver/open opens. Call it in
// the init function of the package that implements them. It returns an error if the
// name is taken or a field is missing.
func Register(k Kind) error {
	refuse := func(why string) error {
		return &driver.Error{Op: "register a kind of device", Kind: driver.ErrInvalid, Text: fmt.Sprintf("kind %q: %s", k.Name, why)}
	}
	if k.Name == "" || strings.Contains(k.Name, ":") || k.Open == nil || k.Count == nil {
		return refuse("want a name without a colon, Open and Count")
	}
	kindsMu.Lock()
	defer kindsMu.Unlock()
	if slices.Contains(opened, k.Name) || slices.ContainsFunc(kinds, func(other Kind) bool { return other.Name == k.Name }) {
		return refuse("the name is taken")
	}
	kinds = append(kinds, k)
	return nil
}

// Kinds returns the registered kinds, in the order of registration.
func Kinds() []Kind {
	kindsMu.RLock()
	defer kindsMu.RUnlock()
	return slices.Clone(kinds)
}
