// Package picture is what the examples' pictures have in common.
package picture

import (
	"fmt"
	"path/filepath"
)

// Check refuses names, given by -plot, whose ending is no known picture format.
func Check(name string) error {
	switch ext := filepath.Ext(name); ext {
	case ".png", ".svg":
		return nil
	default:
		return fmt.Errorf("-plot %s ends in %q, must be .png or .svg", name, ext)
	}
}
