// Package picture has the style of the examples' pictures.
package picture

import (
	"fmt"
	"path/filepath"
)

// Check returns an error for a -plot whose ending is no known picture format.
func Check(name string) error {
	switch ext := filepath.Ext(name); ext {
	case ".png", ".svg":
		return nil
	default:
		return fmt.Errorf("-plot %s ends in %q, must be .png or .svg", name, ext)
	}
}
