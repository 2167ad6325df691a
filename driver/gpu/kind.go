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
	// Name is the name of the kind. It consists of letters, without a colon.
	Name string
	// Numbered reports whether a device number may follow the name, as in "cuda:1".
	Numbered bool
	// Open opens the device with a number, counted from 0.
	Open func(ctx context.Context, number int) (driver.Device, error)
	// Count returns the number of devices. It returns 0 if the first device cannot be opened;
	// Open then returns the reason.
	Count func() (int, error)
}

var (
	kindsMu sync.RWMutex
	kinds   []Kind
	// opened lists the kinds that package open itself has.
	opened = []string{"cuda", "emulated"}
)

// Register adds a kind of device to those that package driver/open can open. Call it in the
// init function of the package that implements the kind. It returns an error if the name is
// taken or if a field is missing.
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
