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

// BundleReport counts the contents of a bundle and the results for them.
type BundleReport struct {
	Modules, Choices int
	Bytes            int64 // size of these files
	// Digest is the digest of the whole bundle.
	Digest Digest

	// Skipped is the number of damaged files, and files of another format version,
	// that Export left out.
	Skipped int
	// Stored and Unchanged count the files that Import read. Evicted is the number of
	// files that were removed meanwhile to keep the size limit: if it is not 0, the
	// bundle did not fit.
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

// Export writes every sound file of all layers to w as one bundle. If several
// layers have a file, it takes the one that Get finds. Equal content gives equal
// bytes. After an error the output is not a bundle, and Import refuses it.
func (c *Cache) Export(ctx context.Context, w io.Writer) (BundleReport, error) {
	r, err := c.export(ctx, w)
	if err != nil {
		return r, fmt.Errorf("cache: export: %w", err)
	}
	return r, nil
}

// export is Export without the package's name in errors.
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

// ExportFile writes a bundle to a file that everyone may read. The file is
// replaced only when the bundle is complete.
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

// names returns the names of the stored files of all layers, ascending, each once.
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

// sound reads a stored file from the first layer that holds it whole, or returns
// nil. It does not count, update the time of use or set aside.
func (c *Cache) sound(name string) (store.Kind, []byte) {
	kind, key, _ := parseFileName(name)
	for _, l := range c.layers {
		if data, _, err := l.read(name); err == nil && checkStored(kind, key, data) == nil {
			return kind, data
		}
	}
	return kind, nil
}

// BundleOption adds a check of a bundle.
type BundleOption func(*bundleChecks)

// bundleChecks are checks in addition to completeness.
type bundleChecks struct {
	digest    Digest
	hasDigest bool
}

// WithDigest accepts only the bundle with that digest. Any other is an
// [ErrBundle].
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

// CheckBundle reads a whole bundle and stores nothing. It returns nil, or an
// [ErrBundle] that says where the bundle is wrong and why.
func CheckBundle(ctx context.Context, r io.Reader, options ...BundleOption) (BundleReport, error) {
	report, _, err := checkBundle(ctx, r, checksOf(options))
	return report, err
}

// checkBundle is CheckBundle and also returns the files' checksums.
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

// Import stores the files of a bundle in the directory that is written. It adds a
// module's images to those present and replaces choices. Every file is checked as
// by Get and is named by its key, not by the name in the bundle. A bundle that is
// damaged, cut or not a bundle is an [ErrBundle]. If r can seek (a file), nothing
// is stored in this case; otherwise only whole files before the damage. A failed
// write is an error too. [WithDigest] requires an r that can seek.
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
		return report, errors.New("cache: import: a digest can be checked for a file, not for a stream, which is stored while it is read")
	}
	before := c.counters.evicted.Load()
	report.Digest, err = walkBundle(ctx, r, func(f storedFile) error {
		if seals != nil {
			// Store exactly the checked bytes, even if another program writes to the file.
			if at := report.Modules + report.Choices; at >= len(seals) || f.seal() != seals[at] {
				return fmt.Errorf("cache: %w: it changed while it was imported, at file %s", ErrBundle, f.name)
			}
		}
		return c.importFile(f, &report)
	})
	report.Evicted = c.counters.evicted.Load() - before
	return report, err
}

// checkFirst reads and checks the bundle if r can seek, and rewinds r. seals is
// nil if r cannot seek.
func checkFirst(ctx context.Context, r io.Reader, checks bundleChecks) (seals []Digest, err error) {
	s, ok := r.(io.Seeker)
	if !ok {
		return nil, nil
	}
	start, err := s.Seek(0, io.SeekCurrent)
	if err != nil { // a pipe is a file that cannot seek
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

// ImportFile is Import of a bundle in a file.
func (c *Cache) ImportFile(ctx context.Context, path string, options ...BundleOption) (BundleReport, error) {
	f, _, err := disk.OpenRegular(c.fs, path, true)
	if err != nil {
		return BundleReport{}, fmt.Errorf("cache: import: %w", err)
	}
	defer f.Close()
	return c.Import(ctx, f, options...)
}
