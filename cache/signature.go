package cache

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
)

// Digest is the SHA-256 of a whole bundle, as sha256sum prints it.
type Digest [sha256.Size]byte

// String returns the digest as 64 lower-case hexadecimal digits.
func (d Digest) String() string { return hex.EncodeToString(d[:]) }

// ParseDigest reads 64 hexadecimal digits.
func ParseDigest(text string) (Digest, error) {
	var d Digest
	if b, err := hex.DecodeString(text); err == nil && len(b) == len(d) {
		return Digest(b), nil
	}
	return d, fmt.Errorf("cache: SHA-256 %q: want %d hexadecimal digits", text, hex.EncodedLen(len(d)))
}

// ErrSignature reports a malformed signature, or one of another key.
var ErrSignature = errors.New("no valid signature")

// A signature is three lines of text. The third signs the first two:
//
//	sonicmoe bundle signature 1
//	sha256 HEX
//	ed25519 BASE64
const (
	signatureFirst = "sonicmoe bundle signature 1\n"
	signatureSum   = "sha256 "
	signatureKey   = "ed25519 "
)

func signed(d Digest) string { return signatureFirst + signatureSum + d.String() + "\n" }

// Sign returns a text in which the holder of a key vouches for a bundle.
// [CheckSignature] reads it. Keep it next to the bundle.
func Sign(bundle Digest, key ed25519.PrivateKey) []byte {
	text := signed(bundle)
	return fmt.Appendf(nil, "%s%s%s\n", text, signatureKey, base64.StdEncoding.EncodeToString(ed25519.Sign(key, []byte(text))))
}

// CheckSignature returns the digest of the signed bundle if the holder of the key
// signed it, and an [ErrSignature] otherwise. Pass the digest to [WithDigest].
func CheckSignature(text []byte, key ed25519.PublicKey) (Digest, error) {
	wrong := func(why string) (Digest, error) { return Digest{}, fmt.Errorf("cache: %w: %s", ErrSignature, why) }
	lines := strings.SplitAfter(string(text), "\n")
	if len(lines) != 4 || lines[0] != signatureFirst || lines[3] != "" {
		return wrong("want three lines, the first " + strings.TrimSpace(signatureFirst))
	}
	hexSum, ok := strings.CutPrefix(lines[1], signatureSum)
	d, err := ParseDigest(strings.TrimSuffix(hexSum, "\n"))
	if !ok || err != nil {
		return wrong("the second line is not sha256 and 64 digits")
	}
	encoded, ok := strings.CutPrefix(strings.TrimSuffix(lines[2], "\n"), signatureKey)
	signature, err := base64.StdEncoding.DecodeString(encoded)
	// Accept only the encoding that Sign writes, not others for the same bytes.
	if !ok || err != nil || base64.StdEncoding.EncodeToString(signature) != encoded {
		return wrong("the third line is not ed25519 and a signature in base 64")
	}
	if len(key) != ed25519.PublicKeySize || !ed25519.Verify(key, []byte(lines[0]+lines[1]), signature) {
		return wrong("it was made with another key, or altered")
	}
	return d, nil
}
