package command

import (
	"context"
	"os"
	"path/filepath"

	"sonicmoe/internal/disk"
)

// maxText bounds files that people write, in bytes.
const maxText = 1 << 20

// ReadText reads a regular file of at most a MiB.
func ReadText(ctx context.Context, path string) ([]byte, error) {
	return disk.ReadFile(ctx, disk.OS, path, maxText)
}

// ReadConfig reads a model's config.json, by its own path or its folder's.
func ReadConfig(ctx context.Context, path string) (file string, data []byte, err error) {
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		path = filepath.Join(path, "config.json")
	}
	data, err = ReadText(ctx, path)
	return path, data, err
}
