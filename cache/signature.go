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

// envKey is the environment variable with the public key of signed bundles.
const envKey = "SONICMOE_CACHE_KEY"

const (
	// signatureSuffix follows a bundle's name in the name of its signature, as the
	// program minisign writes it.
	signatureSuffix = ".minisig"
	// maxSignatureBytes limits the files of signatures and keys.
	maxSignatureBytes = 4 << 10
	// signedFolder is the subfolder of a cache directory with the times of the newest
	// signed bundles.
	signedFolder = "signed"
)

// signer checks who signed a bundle. A nil signer accepts every bundle.
type signer struct {
	key minisign.PublicKey
	err error // why the key cannot be read: every bundle is refused
	fs  disk.FS
	dir string // of the cache; "" if none is written

	mu     sync.Mutex
	newest map[string]int64 // seconds, by key and name
}

// newSigner returns the signer of a public key: minisign's text of 56 characters, or
// the path of a file with it. "" is the value of SONICMOE_CACHE_KEY, and nil without
// one.
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

// signature is the detached signature of a bundle.
type signature struct {
	by   *signer
	text []byte
	file string // the bundle's name
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

// verify checks the signature after the whole bundle was read through r, and sets time.
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
	// minisign writes timestamp:SECONDS and file:NAME; its Go version writes filename:NAME.
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

// accept refuses a verified bundle if a newer one of the same name and key was
// accepted, unless older is set. It keeps the time for later processes.
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
