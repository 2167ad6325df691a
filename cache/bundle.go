package cache

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"strings"

	"sonicmoe/internal/store"
)

// A bundle is a tar file (USTAR), so that every tool can list and unpack it:
//
//	SONICMOE-BUNDLE        the line firstLine: the format and its version
//	entries/KEY.module     stored files as in a cache directory, with their checksums,
//	entries/KEY.choice     in ascending order of their names
//	SONICMOE-BUNDLE-END    the number of files, and the SHA-256 of all bytes above
//
// Owner, times and padding are always the same, so that equal files make equal bundles. A
// reader accepts only the exact form that Export writes. It checks every byte, and refuses a
// bundle that was cut anywhere. A file must have the name that follows from its key.
const (
	firstName = "SONICMOE-BUNDLE"
	lastName  = "SONICMOE-BUNDLE-END"
	firstLine = "sonicmoe bundle 1\n"

	tarBlock = 512
	// lastMost is the largest size in bytes of the content of SONICMOE-BUNDLE-END.
	lastMost = 256
)

// ErrBundle means that a bundle was refused. The error that wraps it has the position and the
// reason.
var ErrBundle = errors.New("not a sound bundle")

// memberName returns the name of a stored file inside a bundle.
func memberName(name string) string { return folder + "/" + name }

// memberHeader returns the tar header of a member with this name and size. A bundle with any other
// header is refused.
func memberHeader(name string, size int64) ([]byte, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: size, Mode: 0o644, Format: tar.FormatUSTAR})
	return b.Bytes(), err
}

// bundleWriter writes the members of a bundle, that is, the files in the tar file.
type bundleWriter struct {
	w     io.Writer // also writes to sum
	sum   hash.Hash
	files int
}

func newBundleWriter(w io.Writer) (*bundleWriter, error) {
	b := &bundleWriter{sum: sha256.New()}
	b.w = io.MultiWriter(w, b.sum)
	return b, b.member(firstName, []byte(firstLine))
}

func (b *bundleWriter) member(name string, data []byte) error {
	header, err := memberHeader(name, int64(len(data)))
	if err != nil {
		return err
	}
	for _, part := range [][]byte{header, data, make([]byte, padding(int64(len(data))))} {
		if _, err := b.w.Write(part); err != nil {
			return err
		}
	}
	return nil
}

// file appends a stored file. Files must be appended in ascending order of their names.
func (b *bundleWriter) file(name string, data []byte) error {
	b.files++
	return b.member(memberName(name), data)
}

// close writes the last member and the end of the tar file.
func (b *bundleWriter) close() error {
	if err := b.member(lastName, lastLines(b.files, b.sum)); err != nil {
		return err
	}
	_, err := b.w.Write(make([]byte, 2*tarBlock))
	return err
}

func lastLines(files int, sum hash.Hash) []byte {
	return fmt.Appendf(nil, "%d files\nsha256 %x\n", files, sum.Sum(nil))
}

// digest is a SHA-256 digest.
type digest [sha256.Size]byte

// digest returns the SHA-256 of all bytes written so far.
func (b *bundleWriter) digest() digest { return digest(b.sum.Sum(nil)) }

// padding returns the number of bytes that fill up the last tar block of a member.
func padding(size int64) int64 { return -size & (tarBlock - 1) }

// storedFile is a file of a bundle that has passed its checks.
type storedFile struct {
	name   string
	kind   store.Kind
	key    store.Key
	data   []byte
	offset int64 // of data in the bundle
}

// bundleReader reads a bundle from front to back.
type bundleReader struct {
	r   *bufio.Reader
	sum hash.Hash // of all bytes read
	at  int64     // bytes read
}

func newBundleReader(r io.Reader) *bundleReader {
	return &bundleReader{r: bufio.NewReader(r), sum: sha256.New()}
}

// walkBundle reads a whole bundle, and calls visit for each file whose own checksum is right.
// Only if the error is nil is the bundle complete. The digest then covers all its bytes.
func walkBundle(ctx context.Context, r io.Reader, visit func(storedFile) error) (digest, error) {
	b := newBundleReader(r)
	if err := b.files(ctx, visit); err != nil {
		return digest{}, err
	}
	return digest(b.sum.Sum(nil)), nil
}

// files reads all members.
func (b *bundleReader) files(ctx context.Context, visit func(storedFile) error) error {
	if err := b.first(); err != nil {
		return err
	}
	last := ""
	for files := 0; ; files++ {
		if err := ctx.Err(); err != nil {
			return err
		}
		sum := lastLines(files, b.sum) // the content that the last member must have
		name, size, err := b.header()
		if err != nil {
			return err
		}
		if name == lastName {
			return b.end(size, sum)
		}
		f, err := b.file(name, size)
		if err != nil {
			return err
		}
		if f.name <= last {
			return b.refuse("file %s is repeated or out of order", f.name)
		}
		last = f.name
		if err := visit(f); err != nil {
			return err
		}
	}
}

// refuse returns an ErrBundle with the present position.
func (b *bundleReader) refuse(format string, args ...any) error {
	return fmt.Errorf("%w: before byte %d: %w", ErrBundle, b.at, fmt.Errorf(format, args...))
}

// bytes reads n bytes. It allocates memory only as the bytes arrive, so that a false length in
// a bundle costs no memory.
func (b *bundleReader) bytes(n int64, of string) ([]byte, error) {
	var data bytes.Buffer
	got, err := io.Copy(&data, io.LimitReader(b.r, n))
	b.at += got
	b.sum.Write(data.Bytes())
	if err != nil {
		return nil, fmt.Errorf("reading a bundle: %w", err)
	}
	if got < n {
		return nil, b.refuse("ends within %s: %d bytes of %d", of, got, n)
	}
	return data.Bytes(), nil
}

// first reads the first member.
func (b *bundleReader) first() error {
	name, size, err := b.header()
	if err != nil {
		return err
	}
	if name != firstName || size > lastMost {
		return b.refuse("begins with %q, a bundle with %q", name, firstName)
	}
	line, err := b.body(name, size)
	if err == nil && string(line) != firstLine {
		err = b.refuse("its first line is %q, this version reads %q", line, firstLine)
	}
	return err
}

// header reads a member's header, which must be exactly the header that Export writes.
func (b *bundleReader) header() (name string, size int64, err error) {
	block, err := b.bytes(tarBlock, "a header")
	if err != nil {
		return "", 0, err
	}
	h, err := tar.NewReader(bytes.NewReader(block)).Next()
	switch {
	case errors.Is(err, io.EOF): // the end of the tar file
		return "", 0, b.refuse("ends without %s", lastName)
	case err != nil:
		return "", 0, b.refuse("no tar header of a plain file: %w", err)
	case h.Typeflag != tar.TypeReg:
		return "", 0, b.refuse("member %q is no plain file (tar type %q)", h.Name, h.Typeflag)
	}
	if want, err := memberHeader(h.Name, h.Size); err != nil || !bytes.Equal(block, want) {
		return "", 0, b.refuse("the header of member %q is not one that Export writes", h.Name)
	}
	return h.Name, h.Size, nil
}

// body reads a member's bytes and its padding.
func (b *bundleReader) body(name string, size int64) ([]byte, error) {
	data, err := b.bytes(size+padding(size), "member "+name)
	if err != nil {
		return nil, err
	}
	if len(bytes.TrimLeft(data[size:], "\x00")) > 0 {
		return nil, b.refuse("member %q has padding that is not zero", name)
	}
	return data[:size:size], nil
}

// file reads the content of a stored file and checks it.
func (b *bundleReader) file(name string, size int64) (storedFile, error) {
	kind, key, ok := parseMemberName(name)
	if !ok {
		return storedFile{}, b.refuse("member name %q: want %s/KEY.module or %s/KEY.choice", name, folder, folder)
	}
	if size > maxFileBytes {
		return storedFile{}, b.refuse("member %q: %d bytes, at most %d can be stored", name, size, maxFileBytes)
	}
	offset := b.at
	data, err := b.body(name, size)
	if err != nil {
		return storedFile{}, err
	}
	if err := checkStored(kind, key, data); err != nil {
		return storedFile{}, b.refuse("member %q: %w", name, err)
	}
	return storedFile{fileName(kind, key), kind, key, data, offset}, nil
}

// end reads the last member. After it only the end of the tar file may follow.
func (b *bundleReader) end(size int64, want []byte) error {
	if size > lastMost {
		return b.refuse("member %q has %d bytes", lastName, size)
	}
	got, err := b.body(lastName, size)
	if err != nil {
		return err
	}
	if !bytes.Equal(got, want) {
		return b.refuse("its end says %q, its content gives %q", got, want)
	}
	zeros, err := b.bytes(2*tarBlock, "its end")
	if err != nil {
		return err
	}
	if len(bytes.TrimLeft(zeros, "\x00")) > 0 {
		return b.refuse("goes on after %s", lastName)
	}
	if _, err := b.r.ReadByte(); !errors.Is(err, io.EOF) {
		return b.refuse("goes on after its end")
	}
	return nil
}

// seal returns the checksum at the end of the stored file, which the reader has verified.
func (f storedFile) seal() digest { return digest(f.data[len(f.data)-sealSize:]) }

// parseMemberName returns the kind and the key of a name that memberName returned.
func parseMemberName(name string) (store.Kind, store.Key, bool) {
	base, ok := strings.CutPrefix(name, folder+"/")
	if !ok {
		return 0, store.Key{}, false
	}
	return parseFileName(base)
}

// checkStored checks the content of a stored file of either kind.
func checkStored(kind store.Kind, key store.Key, data []byte) error {
	if kind == store.KindChoice {
		_, _, err := decodeChoice(data, key)
		return err
	}
	_, err := decodeEntry(data, key)
	return err
}
