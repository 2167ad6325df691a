package main

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"

	"sonicmoe/cache"
	"sonicmoe/examples/internal/command"
	"sonicmoe/internal/disk"
)

// signatureSuffix follows the name of a bundle in the name of its signature, publicSuffix
// the name of a private key in the name of the public key.
const (
	signatureSuffix = ".sig"
	publicSuffix    = ".pub"
)

// Types of PEM blocks, as in openssl.
const (
	privateBlock = "PRIVATE KEY"
	publicBlock  = "PUBLIC KEY"
)

func keygenCommand(_ *flag.FlagSet, c *console) func(context.Context, []string) error {
	return func(_ context.Context, args []string) error {
		path, err := oneFile("keygen", "file", args)
		if err != nil {
			return err
		}
		public, private, err := ed25519.GenerateKey(rand.Reader)
		if err != nil {
			return err
		}
		privateDER, err := x509.MarshalPKCS8PrivateKey(private)
		if err != nil {
			return err
		}
		publicDER, err := x509.MarshalPKIXPublicKey(public)
		if err != nil {
			return err
		}
		// An existing key may be the only copy and is never overwritten.
		for _, file := range []string{path, path + publicSuffix} {
			if _, err := os.Lstat(file); !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("%s exists already, and a key is not overwritten: %w", file, errors.Join(err, fs.ErrExist))
			}
		}
		if err := writePEM(path, 0o600, privateBlock, privateDER); err != nil {
			return err
		}
		if err := writePEM(path+publicSuffix, 0o644, publicBlock, publicDER); err != nil {
			return err
		}
		fmt.Fprintf(c.out, "private key    %s: keep it secret, for export -sign\n", path)
		fmt.Fprintf(c.out, "public key     %s: for import -key on other machines\n", path+publicSuffix)
		return nil
	}
}

func writePEM(path string, mode fs.FileMode, block string, data []byte) error {
	return disk.WriteFile(disk.OS, path, mode, func(w io.Writer) error {
		return pem.Encode(w, &pem.Block{Type: block, Bytes: data})
	})
}

// signFlag declares -sign.
func signFlag(set *flag.FlagSet) *string {
	return set.String("sign", "", "sign the bundle with the private key in this `file` (see keygen); the signature is the file BUNDLE"+signatureSuffix)
}

// signer reads a private key and returns a function that writes a bundle's signature, nil
// without a key.
func signer(ctx context.Context, file string) (func(bundle string, d cache.Digest) error, error) {
	if file == "" {
		return nil, nil
	}
	key, err := readKey[ed25519.PrivateKey](ctx, file, privateBlock, x509.ParsePKCS8PrivateKey)
	if err != nil {
		return nil, err
	}
	return func(bundle string, d cache.Digest) error {
		return disk.WriteFile(disk.OS, bundle+signatureSuffix, 0o644, func(w io.Writer) error {
			_, err := w.Write(cache.Sign(d, key))
			return err
		})
	}, nil
}

// readKey reads a PEM file with a key of the wanted kind.
func readKey[K any](ctx context.Context, file, want string, parse func([]byte) (any, error)) (K, error) {
	var none K
	data, err := command.ReadText(ctx, file)
	if err != nil {
		return none, err
	}
	block, _ := pem.Decode(data)
	if block == nil || block.Type != want {
		return none, fmt.Errorf("%s has no ed25519 %s in PEM, which \"warmup keygen\" writes", file, want)
	}
	parsed, err := parse(block.Bytes)
	if err != nil {
		return none, fmt.Errorf("%s: %w", file, err)
	}
	key, ok := parsed.(K)
	if !ok {
		return none, fmt.Errorf("%s: the key has type %T, want ed25519", file, parsed)
	}
	return key, nil
}

// origin is the required origin of a bundle.
type origin struct {
	digest, key string
}

// originFlags declares -sha256 and -key.
func originFlags(set *flag.FlagSet) *origin {
	o := &origin{}
	set.StringVar(&o.digest, "sha256", "", "refuse a bundle with another SHA-256 than this, in `hex` as export prints it")
	set.StringVar(&o.key, "key", "", "refuse a bundle without a signature, in the file BUNDLE"+signatureSuffix+", by the public key in this `file`")
	return o
}

// options returns the checks of a bundle by the flags and its signature.
func (o *origin) options(ctx context.Context, bundle string) ([]cache.BundleOption, error) {
	var wanted []cache.Digest
	if o.digest != "" {
		d, err := cache.ParseDigest(o.digest)
		if err != nil {
			return nil, command.Usagef("%w", err)
		}
		wanted = append(wanted, d)
	}
	if o.key != "" {
		d, err := o.signed(ctx, bundle)
		if err != nil {
			return nil, err
		}
		wanted = append(wanted, d)
	}
	switch {
	case len(wanted) == 0:
		return nil, nil
	case len(wanted) == 2 && wanted[0] != wanted[1]:
		return nil, fmt.Errorf("-sha256 is %v, but the signature of %s is for %v", wanted[0], bundle, wanted[1])
	}
	return []cache.BundleOption{cache.WithDigest(wanted[0])}, nil
}

// signed returns the digest in the signature of a bundle.
func (o *origin) signed(ctx context.Context, bundle string) (cache.Digest, error) {
	key, err := readKey[ed25519.PublicKey](ctx, o.key, publicBlock, x509.ParsePKIXPublicKey)
	if err != nil {
		return cache.Digest{}, err
	}
	text, err := disk.ReadFile(ctx, disk.OS, bundle+signatureSuffix, 1<<10) // a signature has 200 bytes
	if err != nil {
		return cache.Digest{}, fmt.Errorf("the bundle has no signature: %w", err)
	}
	d, err := cache.CheckSignature(text, key)
	if err != nil {
		return d, fmt.Errorf("%s: %w", bundle+signatureSuffix, err)
	}
	return d, nil
}
