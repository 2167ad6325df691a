package store

import (
	"fmt"
	"os"
	"path/filepath"
)

// DefaultDir returns the directory of the cache. It is used if neither cache.Options nor
// SONICMOE_CACHE names a directory.
func DefaultDir() (string, error) {
	base, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("%w; set SONICMOE_CACHE to a directory or to \"off\"", err)
	}
	return filepath.Join(base, "sonicmoe"), nil
}
