package cache

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"sonicmoe/internal/disk"
	"sonicmoe/internal/store"
)

// BundleReport counts what a bundle holds and what became of it.
type BundleReport struct {
	Modules, Choices int
	Bytes            int64 // of their files
	// Digest is that of the whole bundle, of a stored or checked one.
	Digest Digest

	// Skipped are damaged files and files of another format version that
	// Export left out.
	Skipped int
	// Stored and Unchanged split what Import met. Evicted is how many files
	// the directory's size bound cost meanwhile: if it is not 0 the bundle did
	// not fit.
	Stored, Unchanged int
	Evicted           int64
}

func (r *BundleReport) count(kind store.Kind, size int) {
	if kind == store.KindChoice {
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
	r, err := c.export(ctx, w)
	if err != nil {
		return r, fmt.Errorf("cache: export: %w", err)
	}
	return r, nil
}

// export is Export; its errors lack the package's name.
func (c *Cache) export(ctx context.Context, w io.Writer) (r BundleReport, err error) {
	names, err := c.names()
	if err != nil {
		return r, err
	}
	b, err := newBundleWriter(w)
	if err != nil {
		return r, err
	}
	for _, name := range names {
		if err := ctx.Err(); err != nil {
			return r, err
		}
		kind, data := c.sound(name)
		if data == nil {
			r.Skipped++
			continue
		}
		if err := b.file(name, data); err != nil {
			return r, err
		}
		r.count(kind, len(data))
	}
	err = b.close()
	r.Digest = b.digest()
	return r, err
}

// ExportFile writes a bundle to a file, readable by everyone. The name shows
// the whole bundle or what it showed before.
func (c *Cache) ExportFile(ctx context.Context, path string) (BundleReport, error) {
	var r BundleReport
	err := disk.WriteFile(c.fs, path, 0o644, func(f io.Writer) error {
		w := bufio.NewWriterSize(f, 1<<20)
		var err error
		if r, err = c.export(ctx, w); err != nil {
			return err
		}
		return w.Flush()
	})
	if err != nil {
		return BundleReport{}, fmt.Errorf("cache: export to %s: %w", path, err)
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
func (c *Cache) sound(name string) (store.Kind, []byte) {
	kind, key, _ := parseFileName(name)
	for _, l := range c.layers {
		if data, _, err := l.read(name); err == nil && checkStored(kind, key, data) == nil {
			return kind, data
		}
	}
	return kind, nil
}

// BundleOption changes how a bundle is checked.
type BundleOption func(*bundleChecks)

// bundleChecks are what a bundle must be beside whole.
type bundleChecks struct {
	digest    Digest
	hasDigest bool
}

// WithDigest refuses every bundle but the one of that digest, as an [ErrBundle].
func WithDigest(d Digest) BundleOption {
	return func(c *bundleChecks) { c.digest, c.hasDigest = d, true }
}

func checksOf(options []BundleOption) (c bundleChecks) {
	for _, o := range options {
		o(&c)
	}
	return c
}

func (c bundleChecks) check(d Digest) error {
	if c.hasDigest && d != c.digest {
		return fmt.Errorf("cache: %w: it has the SHA-256 %v, want %v", ErrBundle, d, c.digest)
	}
	return nil
}

// CheckBundle reads a whole bundle, stores nothing, and returns nil or an
// [ErrBundle] that says where and what is wrong.
func CheckBundle(ctx context.Context, r io.Reader, options ...BundleOption) (BundleReport, error) {
	report, _, err := checkBundle(ctx, r, checksOf(options))
	return report, err
}

// checkBundle is CheckBundle, and gives the files' checksums.
func checkBundle(ctx context.Context, r io.Reader, checks bundleChecks) (report BundleReport, seals []Digest, err error) {
	report.Digest, err = walkBundle(ctx, r, func(f storedFile) error {
		report.count(f.kind, len(f.data))
		seals = append(seals, f.seal())
		return nil
	})
	if err == nil {
		err = checks.check(report.Digest)
	}
	return report, seals, err
}

// Import stores the files of a bundle in the directory that is written:
// modules beside the images that are there, choices in place of earlier ones.
// Every file is checked as Get would check it, and is named by its key, never
// by the bundle. A bundle that is damaged, cut or not one is an [ErrBundle]: of
// an r that can seek (a file) nothing was stored then, of another one only
// whole files from before the damage. A write that fails is an error too. With
// [WithDigest] r must be able to seek.
func (c *Cache) Import(ctx context.Context, r io.Reader, options ...BundleOption) (BundleReport, error) {
	var report BundleReport
	if c.top == nil {
		return report, fmt.Errorf("cache: import: %w", c.noTop())
	}
	checks := checksOf(options)
	seals, err := checkFirst(ctx, r, checks)
	if err != nil {
		return report, err
	}
	if seals == nil && checks.hasDigest {
		return report, errors.New("cache: import: a digest can be asked of a file, not of a stream, which is stored while it is read")
	}
	before := c.counters.evicted.Load()
	report.Digest, err = walkBundle(ctx, r, func(f storedFile) error {
		if seals != nil {
			// What is stored is what was checked, whoever writes to the file.
			if at := report.Modules + report.Choices; at >= len(seals) || f.seal() != seals[at] {
				return fmt.Errorf("cache: %w: it changed while it was imported, at file %s", ErrBundle, f.name)
			}
		}
		return c.importFile(f, &report)
	})
	report.Evicted = c.counters.evicted.Load() - before
	return report, err
}

// checkFirst reads the bundle of an r that can seek and goes back; seals are
// nil where r can't.
func checkFirst(ctx context.Context, r io.Reader, checks bundleChecks) (seals []Digest, err error) {
	s, ok := r.(io.Seeker)
	if !ok {
		return nil, nil
	}
	start, err := s.Seek(0, io.SeekCurrent)
	if err != nil { // a pipe is a file that can't
		return nil, nil
	}
	_, seals, err = checkBundle(ctx, r, checks)
	if err != nil {
		return nil, err
	}
	if _, err := s.Seek(start, io.SeekStart); err != nil {
		return nil, fmt.Errorf("cache: import: %w", err)
	}
	if seals == nil {
		seals = []Digest{} // of an empty bundle
	}
	return seals, nil
}

// importFile stores one file of a bundle.
func (c *Cache) importFile(f storedFile, r *BundleReport) error {
	var o store.Outcome
	switch f.kind {
	case store.KindModule:
		e, err := decodeEntry(f.data, f.key)
		if err != nil {
			return err
		}
		o = modules{c}.Put(f.key, e)
	case store.KindChoice:
		key, value, err := decodeChoice(f.data, f.key)
		if err != nil {
			return err
		}
		o = modules{c}.PutChoice(key, value)
	}
	switch o {
	case store.Stored:
		r.Stored++
	case store.Unchanged:
		r.Unchanged++
	default:
		return fmt.Errorf("cache: import of %s: %s: %w", f.name, o, c.noTop())
	}
	r.count(f.kind, len(f.data))
	return nil
}

// ImportFile is Import of the bundle in a file.
func (c *Cache) ImportFile(ctx context.Context, path string, options ...BundleOption) (BundleReport, error) {
	f, _, err := disk.OpenRegular(c.fs, path, true)
	if err != nil {
		return BundleReport{}, fmt.Errorf("cache: import: %w", err)
	}
	defer f.Close()
	return c.Import(ctx, f, options...)
}
