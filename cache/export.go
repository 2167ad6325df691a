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

// BundleReport counts the contents of a bundle and the results for them.
type BundleReport struct {
	Modules, Choices int
	Bytes            int64 // size of these files
	// SHA256 is the digest of the whole bundle in hexadecimal, as sha256sum prints it.
	SHA256 string
	// Signed is the time in the bundle's signature, zero if the cache has no key.
	Signed time.Time

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
	sum := b.digest()
	r.SHA256 = hex.EncodeToString(sum[:])
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

// BundleOptions are checks of a bundle, in addition to completeness and, if the cache
// has a key, the signature.
type BundleOptions struct {
	// SHA256 accepts only the bundle with that digest, 64 hexadecimal digits.
	SHA256 string
	// Older accepts a signed bundle although a newer one of the same name was used.
	Older bool
}

// bundleChecks are the checks of a bundle. The zero value has none.
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

// read reads a whole bundle and checks it. It returns the files' checksums.
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

// CheckBundle reads the bundle in a file and stores nothing. It returns nil, or an
// [ErrBundle] that says where the bundle is wrong and why.
func (c *Cache) CheckBundle(ctx context.Context, path string, o BundleOptions) (BundleReport, error) {
	return c.withBundle(ctx, path, o, func(f io.Reader, checks bundleChecks) (BundleReport, error) {
		r, _, err := checks.read(ctx, f)
		return r, err
	})
}

// withBundle opens the bundle at path and calls use with its checks.
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

// Import stores the files of a bundle in the directory that is written. It adds a
// module's images to those present and replaces choices. Every file is checked as
// by Get and is named by its key, not by the name in the bundle. A bundle that is
// damaged, cut or not a bundle is an [ErrBundle]. If r can seek (a file), nothing
// is stored in this case; otherwise only whole files before the damage. A failed
// write is an error too. A cache with a key needs [Cache.ImportFile].
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

// ImportFile is Import of a bundle in a file, after the checks of o.
func (c *Cache) ImportFile(ctx context.Context, path string, o BundleOptions) (BundleReport, error) {
	return c.withBundle(ctx, path, o, func(f io.Reader, checks bundleChecks) (BundleReport, error) {
		return c.importChecked(ctx, f, checks, o.Older)
	})
}

// importChecked is Import after other checks, which need an r that can seek.
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
			// Store exactly the checked bytes, even if another program writes to the file.
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

// checkFirst reads and checks the bundle if r can seek, and rewinds r. seals is
// nil if r cannot seek.
func checkFirst(ctx context.Context, r io.Reader, checks bundleChecks) (report BundleReport, seals []digest, err error) {
	s, ok := r.(io.Seeker)
	if !ok {
		return report, nil, nil
	}
	start, err := s.Seek(0, io.SeekCurrent)
	if err != nil { // a pipe is a file that cannot seek
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
		seals = []digest{} // of an empty bundle
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
