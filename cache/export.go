package cache

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
)

// BundleReport counts what a bundle holds and what became of it.
type BundleReport struct {
	Modules, Choices int
	Bytes            int64 // of their files

	// Skipped are damaged files and files of another format version that
	// Export left out.
	Skipped int
	// Stored and Unchanged split what Import met. Evicted is how many files
	// the directory's size bound cost meanwhile: if it is not 0 the bundle did
	// not fit.
	Stored, Unchanged int
	Evicted           int64
}

func (r *BundleReport) count(kind Kind, size int) {
	if kind == KindChoice {
		r.Choices++
	} else {
		r.Modules++
	}
	r.Bytes += int64(size)
}

// Export writes every sound file of all layers to w as one bundle. Of files
// that several layers have, it is the one that Get finds. Equal content gives
// equal bytes. After an error what was written is no bundle, and Import
// refuses it.
func (c *Cache) Export(ctx context.Context, w io.Writer) (BundleReport, error) {
	var r BundleReport
	names, err := c.names()
	if err != nil {
		return r, fmt.Errorf("cache: export: %w", err)
	}
	b, err := newBundleWriter(w)
	if err != nil {
		return r, fmt.Errorf("cache: export: %w", err)
	}
	for _, name := range names {
		if err := ctx.Err(); err != nil {
			return r, fmt.Errorf("cache: export: %w", err)
		}
		kind, data := c.sound(name)
		if data == nil {
			r.Skipped++
			continue
		}
		if err := b.file(name, data); err != nil {
			return r, fmt.Errorf("cache: export: %w", err)
		}
		r.count(kind, len(data))
	}
	if err := b.close(); err != nil {
		return r, fmt.Errorf("cache: export: %w", err)
	}
	return r, nil
}

// ExportFile writes a bundle to a file, readable by everyone. The name shows
// the whole bundle or what it showed before.
func (c *Cache) ExportFile(ctx context.Context, path string) (r BundleReport, err error) {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*"+tempSuffix)
	if err != nil {
		return r, fmt.Errorf("cache: export: %w", err)
	}
	defer func() {
		if err != nil {
			os.Remove(f.Name())
		}
	}()
	w := bufio.NewWriterSize(f, 1<<20)
	r, err = c.Export(ctx, w)
	err = errors.Join(err, w.Flush())
	if err == nil {
		err = errors.Join(syncFile(f), f.Chmod(0o644))
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return r, err
	}
	if err = os.Rename(f.Name(), path); err != nil {
		return r, fmt.Errorf("cache: export: %w", err)
	}
	return r, nil
}

// names are the stored files of all layers, ascending, each once.
func (c *Cache) names() ([]string, error) {
	if len(c.layers) == 0 {
		return nil, c.noTop()
	}
	var names []string
	for _, l := range c.layers {
		files, err := l.scan()
		if err != nil {
			return nil, err
		}
		for _, f := range files {
			if f.class == classModule || f.class == classChoice {
				names = append(names, f.name)
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// sound reads a stored file from the first layer where it is whole, without
// counting, touching or setting aside; nil if there is none.
func (c *Cache) sound(name string) (Kind, []byte) {
	kind, key, _ := parseFileName(name)
	for _, l := range c.layers {
		if data, _, err := l.read(name); err == nil && checkStored(kind, key, data) == nil {
			return kind, data
		}
	}
	return kind, nil
}

// CheckBundle reads a whole bundle, stores nothing, and returns nil or an
// [ErrBundle] that says where and what is wrong.
func CheckBundle(ctx context.Context, r io.Reader) (BundleReport, error) {
	var report BundleReport
	err := walkBundle(ctx, r, func(f storedFile) error {
		report.count(f.kind, len(f.data))
		return nil
	})
	return report, err
}

// Import stores the files of a bundle in the directory that is written:
// modules beside the images that are there, choices in place of earlier ones.
// Every file is checked as Get would check it, and is named by its key, never
// by the bundle. A bundle that is damaged, cut or not one is an [ErrBundle]: of
// an r that can seek (a file) nothing was stored then, of another one only
// whole files from before the damage. A write that fails is an error too.
func (c *Cache) Import(ctx context.Context, r io.Reader) (BundleReport, error) {
	var report BundleReport
	if c.top == nil {
		return report, fmt.Errorf("cache: import: %w", c.noTop())
	}
	if s, ok := r.(io.Seeker); ok {
		start, err := s.Seek(0, io.SeekCurrent)
		if err == nil { // a pipe is a file that can't
			if _, err := CheckBundle(ctx, r); err != nil {
				return report, err
			}
			if _, err := s.Seek(start, io.SeekStart); err != nil {
				return report, fmt.Errorf("cache: import: %w", err)
			}
		}
	}
	before := c.counters.evicted.Load()
	err := walkBundle(ctx, r, func(f storedFile) error { return c.importFile(f, &report) })
	report.Evicted = c.counters.evicted.Load() - before
	return report, err
}

// importFile stores one file of a bundle.
func (c *Cache) importFile(f storedFile, r *BundleReport) error {
	var o Outcome
	switch f.kind {
	case KindModule:
		e, err := decodeEntry(f.data, f.key)
		if err != nil {
			return err
		}
		o = c.Put(f.key, e)
	case KindChoice:
		key, value, err := decodeChoice(f.data, f.key)
		if err != nil {
			return err
		}
		o = c.PutChoice(key, value)
	}
	switch o {
	case Stored:
		r.Stored++
	case Unchanged:
		r.Unchanged++
	default:
		return fmt.Errorf("cache: import of %s: %s: %w", f.name, o, c.noTop())
	}
	r.count(f.kind, len(f.data))
	return nil
}

// ImportFile is Import of the bundle in a file.
func (c *Cache) ImportFile(ctx context.Context, path string) (BundleReport, error) {
	f, err := os.Open(path)
	if err != nil {
		return BundleReport{}, fmt.Errorf("cache: import: %w", err)
	}
	defer f.Close()
	if fi, err := f.Stat(); err == nil && fi.IsDir() {
		return BundleReport{}, fmt.Errorf("cache: import: %w", &fs.PathError{Op: "read", Path: path, Err: errors.New("is a directory, a bundle is a file")})
	}
	return c.Import(ctx, f)
}
