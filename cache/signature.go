package cache

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"aead.dev/minisign"

	"sonicmoe/internal/disk"
)

// envKey is the environment variable that holds the public key of signed bundles.
const envKey = "SONICMOE_CACHE_KEY"

const (
	// signatureSuffix is appended to a bundle's name to name the bundle's signature, as the
	// program minisign does.
	signatureSuffix = ".minisig"
	// maxSignatureBytes is the largest size of the file of a signature or a key.
	maxSignatureBytes = 4 << 10
	// signedFolder is the subfolder of a cache directory that records the time of the newest
	// signed bundle for each name and key.
	signedFolder = "signed"
)

// signer checks the signatures of bundles. A nil signer accepts every bundle.
type signer struct {
	key minisign.PublicKey
	err error // why the key cannot be read; if not nil, every bundle is refused
	fs  disk.FS
	dir string // of the cache; "" if no directory is written

	mu     sync.Mutex
	newest map[string]int64 // signing time in seconds, by key and bundle name
}

// newSigner returns the signer for a public key. key is minisign's text of 56 characters, or
// the path of a file with it. If key is empty, newSigner uses the value of SONICMOE_CACHE_KEY,
// and returns nil if that is not set.
func newSigner(fsys disk.FS, key string) *signer {
	if key == "" {
		key = os.Getenv(envKey)
	}
	if key == "" {
		return nil
	}
	s := &signer{fs: fsys, newest: map[string]int64{}}
	if s.key.UnmarshalText([]byte(key)) == nil {
		return s
	}
	text, err := disk.ReadFile(context.Background(), fsys, key, maxSignatureBytes)
	if err == nil {
		err = s.key.UnmarshalText(text)
	}
	if err != nil {
		s.err = fmt.Errorf("key %s: want a public key of minisign, or a file with one: %w", key, err)
	}
	return s
}

// signature is the signature of a bundle, which is stored in a file of its own.
type signature struct {
	by   *signer
	text []byte
	file string // the name of the bundle
	time time.Time
}

// signature reads the signature of the bundle at path.
func (s *signer) signature(ctx context.Context, path string) (*signature, error) {
	if s.err != nil {
		return nil, s.err
	}
	text, err := disk.ReadFile(ctx, s.fs, path+signatureSuffix, maxSignatureBytes)
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%w: a key is set, and the bundle has no signature: %w", ErrBundle, err)
	}
	return &signature{by: s, text: text, file: filepath.Base(path)}, err
}

// verify checks the signature and sets the field time. The whole bundle must have been read through
// r before.
func (g *signature) verify(r *minisign.Reader) error {
	wrong := func(format string, args ...any) error {
		return fmt.Errorf("%w: signature %s%s: %w", ErrBundle, g.file, signatureSuffix, fmt.Errorf(format, args...))
	}
	var parts minisign.Signature
	if err := parts.UnmarshalText(g.text); err != nil {
		return wrong("%w", err)
	}
	if want := g.by.key.ID(); parts.KeyID != want {
		return wrong("it was made with the key %016X, want %016X", parts.KeyID, want)
	}
	if parts.Algorithm != minisign.HashEdDSA {
		return wrong("it is of minisign's old format, want one without -l")
	}
	if !r.Verify(g.by.key, g.text) {
		return wrong("it is for another file, or was altered")
	}
	// The program minisign writes timestamp:SECONDS and file:NAME. Its version in Go writes
	// filename:NAME.
	fields := map[string]string{}
	for field := range strings.SplitSeq(parts.TrustedComment, "\t") {
		name, value, _ := strings.Cut(field, ":")
		fields[name] = value
	}
	seconds, err := strconv.ParseInt(fields["timestamp"], 10, 64)
	if err != nil || seconds <= 0 {
		return wrong("its trusted comment is %q, want timestamp:SECONDS and file:NAME, as minisign writes them", parts.TrustedComment)
	}
	if fields["file"] != g.file && fields["filename"] != g.file {
		return wrong("its trusted comment is %q, want file:%s: a signature holds for one name", parts.TrustedComment, g.file)
	}
	g.time = time.Unix(seconds, 0)
	return nil
}

// accept accepts or refuses a bundle whose signature was verified. It refuses the bundle if a
// newer one with the same name and key was accepted before, unless older is true. It records
// the time of an accepted bundle for later processes.
func (g *signature) accept(older bool) error {
	s := g.by
	s.mu.Lock()
	defer s.mu.Unlock()
	name := fmt.Sprintf("%016X-%s", s.key.ID(), g.file)
	record, now := filepath.Join(s.dir, signedFolder, name), g.time.Unix()
	last, found := s.newest[name]
	if s.dir != "" {
		switch text, err := disk.ReadFile(context.Background(), s.fs, record, maxSignatureBytes); {
		case err == nil:
			kept, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
			if err != nil {
				return fmt.Errorf("%s: want the seconds of a signature: %w", record, err)
			}
			last, found = kept, true
		case !errors.Is(err, fs.ErrNotExist):
			return err
		}
	}
	if found && now < last && !older {
		accept := ""
		if s.dir != "" {
			accept = "; remove " + record + " to accept it"
		}
		return fmt.Errorf("%w: %s was signed at %s, and a newer one, of %s, was used already%s", ErrBundle, g.file, stamp(now), stamp(last), accept)
	}
	s.newest[name] = now
	if s.dir == "" || found && now == last {
		return nil
	}
	if err := s.fs.MkdirAll(filepath.Dir(record), 0o700); err != nil {
		return err
	}
	return disk.WriteFile(s.fs, record, 0o600, func(w io.Writer) error {
		_, err := fmt.Fprintln(w, now)
		return err
	})
}

func stamp(seconds int64) string { return time.Unix(seconds, 0).UTC().Format(time.RFC3339) }
