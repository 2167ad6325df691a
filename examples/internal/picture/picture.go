// Package picture defines the style of the examples' pictures.
package picture

import (
	"fmt"
	"path/filepath"
)

// Check returns an error if the file name of a -plot flag does not end with a known picture
// format.
func Check(name string) error {
	switch ext := filepath.Ext(name); ext {
	case ".png", ".svg":
		return nil
	default:
		return fmt.Errorf("-plot %s ends in %q, must be .png or .svg", name, ext)
	}
}
