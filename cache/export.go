package cache

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"aead.dev/minisign"

	"sonicmoe/internal/disk"
	"sonicmoe/internal/store"
)

// BundleReport counts the files of a bundle, and says what happened to them.
type BundleReport struct {
	Modules, Choices int
	Bytes            int64 // total size of the modules and choices
	// SHA256 is the digest of the whole bundle in hexadecimal, the same that sha256sum prints.
	SHA256 string
	// Signed is the time in the bundle's signature. It is zero if the cache has no key.
	Signed time.Time

	// Skipped is the number of files that Export left out because they are damaged or of
	// another format version.
	Skipped int
	// Stored and Unchanged count the files that Import read. Evicted is the number of files
	// that were removed during the import to keep the size limit. If it is not 0, the bundle
	// did not fit.
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

// Export writes every undamaged file of all cache layers to w as one bundle. If several layers
// have a file of the same name, Export takes the first undamaged one, in the order of the layers. Equal content gives equal
// bytes. After an error the output is not a valid bundle, and Import refuses it.
func (c *Cache) Export(ctx context.Context, w io.Writer) (BundleReport, error) {
	r, err := c.export(ctx, w)
	if err != nil {
		return r, fmt.Errorf("cache: export: %w", err)
	}
	return r, nil
}

// export is [Cache.Export] without the package's name in errors.
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
	sum := b.digest()
	r.SHA256 = hex.EncodeToString(sum[:])
	return r, err
}

// ExportFile writes a bundle to a file that all users may read. If the file exists, it is
// replaced only once the new bundle is complete.
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

// names returns the names of the stored files of all cache layers, in ascending order and
// without duplicates.
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

// sound returns the kind and the bytes of a stored file, from the first layer that holds it
// undamaged. If there is none, the bytes are nil. It does not change statistics or times of
// use, and sets no file aside.
func (c *Cache) sound(name string) (store.Kind, []byte) {
	kind, key, _ := parseFileName(name)
	for _, l := range c.layers {
		if data, _, err := l.read(name); err == nil && checkStored(kind, key, data) == nil {
			return kind, data
		}
	}
	return kind, nil
}

// BundleOptions are further checks of a bundle. A bundle must always be complete and, if the
// cache has a key, signed.
type BundleOptions struct {
	// SHA256 is the digest, 64 hexadecimal digits, that the bundle must have. If it is empty,
	// any digest is accepted.
	SHA256 string
	// Older accepts a signed bundle even if a newer one of the same name was used before.
	Older bool
}

// bundleChecks are the checks of a bundle. The zero value checks only that the bundle is
// complete.
type bundleChecks struct {
	sha256    string
	signature *signature
}

// checks returns the checks of the bundle at path.
func (c *Cache) checks(ctx context.Context, path string, o BundleOptions) (checks bundleChecks, err error) {
	if b, err := hex.DecodeString(o.SHA256); err != nil || len(b) != 0 && len(b) != sha256.Size {
		return checks, fmt.Errorf("SHA-256 %q: want %d hexadecimal digits", o.SHA256, hex.EncodedLen(sha256.Size))
	}
	checks.sha256 = strings.ToLower(o.SHA256)
	if c.signer != nil {
		checks.signature, err = c.signer.signature(ctx, path)
	}
	return checks, err
}

// read reads a whole bundle and checks it. It also returns the checksums of the files.
func (checks bundleChecks) read(ctx context.Context, r io.Reader) (report BundleReport, seals []digest, err error) {
	m := minisign.NewReader(r)
	sum, err := walkBundle(ctx, m, func(f storedFile) error {
		report.count(f.kind, len(f.data))
		seals = append(seals, f.seal())
		return nil
	})
	if err != nil {
		return report, nil, err
	}
	report.SHA256 = hex.EncodeToString(sum[:])
	if checks.sha256 != "" && checks.sha256 != report.SHA256 {
		return report, nil, fmt.Errorf("%w: it has the SHA-256 %s, want %s", ErrBundle, report.SHA256, checks.sha256)
	}
	if checks.signature != nil {
		if err := checks.signature.verify(m); err != nil {
			return report, nil, err
		}
		report.Signed = checks.signature.time
	}
	return report, seals, nil
}

// CheckBundle checks the bundle in a file and stores nothing. The error is nil, or an
// [ErrBundle] that says where the bundle is wrong and why.
func (c *Cache) CheckBundle(ctx context.Context, path string, o BundleOptions) (BundleReport, error) {
	return c.withBundle(ctx, path, o, func(f io.Reader, checks bundleChecks) (BundleReport, error) {
		r, _, err := checks.read(ctx, f)
		return r, err
	})
}

// withBundle opens the bundle at path and calls use with the reader and the checks.
func (c *Cache) withBundle(ctx context.Context, path string, o BundleOptions, use func(io.Reader, bundleChecks) (BundleReport, error)) (r BundleReport, err error) {
	f, _, err := disk.OpenRegular(c.fs, path, true)
	if err != nil {
		return r, fmt.Errorf("cache: %w", err)
	}
	defer f.Close()
	checks, err := c.checks(ctx, path, o)
	if err == nil {
		r, err = use(f, checks)
	}
	if err != nil {
		err = fmt.Errorf("cache: %s: %w", path, err)
	}
	return r, err
}

// Import stores the files of a bundle in the directory that is written. It adds images to
// modules that are already stored, and replaces choices. Every file is checked as on every read, and
// is named by its key instead of the name in the bundle. A bundle that is damaged or cut, and a
// file that is no bundle, is an [ErrBundle]. If r can seek, as a file can, nothing is then
// stored. Otherwise the whole files before the damage are stored. A failed write is an error,
// too. A cache with a key needs [Cache.ImportFile] instead.
func (c *Cache) Import(ctx context.Context, r io.Reader) (BundleReport, error) {
	if c.signer != nil {
		return BundleReport{}, errors.New("cache: import: a key is set, and a signature can be checked for a file, not for a stream")
	}
	report, err := c.importChecked(ctx, r, bundleChecks{}, false)
	if err != nil {
		err = fmt.Errorf("cache: import: %w", err)
	}
	return report, err
}

// ImportFile imports the bundle in a file, as [Cache.Import] does, after the checks of o.
func (c *Cache) ImportFile(ctx context.Context, path string, o BundleOptions) (BundleReport, error) {
	return c.withBundle(ctx, path, o, func(f io.Reader, checks bundleChecks) (BundleReport, error) {
		return c.importChecked(ctx, f, checks, o.Older)
	})
}

// importChecked imports a bundle with the given checks. If there are any, r must be able to
// seek.
func (c *Cache) importChecked(ctx context.Context, r io.Reader, checks bundleChecks, older bool) (report BundleReport, err error) {
	if c.top == nil {
		return report, c.noTop()
	}
	first, seals, err := checkFirst(ctx, r, checks)
	if err != nil {
		return report, err
	}
	if g := checks.signature; g != nil {
		if err := g.accept(older); err != nil {
			return report, err
		}
	}
	before := c.counters.evicted.Load()
	sum, err := walkBundle(ctx, r, func(f storedFile) error {
		if seals != nil {
			// Only bytes that were checked may be stored, even if another program writes to the
			// file.
			if at := report.Modules + report.Choices; at >= len(seals) || f.seal() != seals[at] {
				return fmt.Errorf("%w: it changed while it was imported, at file %s", ErrBundle, f.name)
			}
		}
		return c.importFile(f, &report)
	})
	if err == nil {
		report.SHA256, report.Signed = hex.EncodeToString(sum[:]), first.Signed
	}
	report.Evicted = c.counters.evicted.Load() - before
	return report, err
}

// checkFirst reads and checks the bundle if r can seek, and then rewinds r. If r cannot seek,
// seals is nil.
func checkFirst(ctx context.Context, r io.Reader, checks bundleChecks) (report BundleReport, seals []digest, err error) {
	s, ok := r.(io.Seeker)
	if !ok {
		return report, nil, nil
	}
	start, err := s.Seek(0, io.SeekCurrent)
	if err != nil { // r has a Seek method but cannot seek, such as a pipe
		return report, nil, nil
	}
	report, seals, err = checks.read(ctx, r)
	if err != nil {
		return report, nil, err
	}
	if _, err := s.Seek(start, io.SeekStart); err != nil {
		return report, nil, err
	}
	if seals == nil {
		seals = []digest{} // not nil for an empty bundle
	}
	return report, seals, nil
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
		return fmt.Errorf("file %s: %s: %w", f.name, o, c.noTop())
	}
	r.count(f.kind, len(f.data))
	return nil
}
