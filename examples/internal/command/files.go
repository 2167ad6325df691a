package command

import (
	"context"
	"os"
	"path/filepath"

	"sonicmoe/internal/disk"
)

// maxText is the largest size of a file that people write, in bytes.
const maxText = 1 << 20

// ReadText reads a regular file of at most one MiB.
func ReadText(ctx context.Context, path string) ([]byte, error) {
	return disk.ReadFile(ctx, disk.OS, path, maxText)
}

// ReadConfig reads a model's config.json. path is the path of the file or of its folder.
func ReadConfig(ctx context.Context, path string) (file string, data []byte, err error) {
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		path = filepath.Join(path, "config.json")
	}
	data, err = ReadText(ctx, path)
	return path, data, err
}
