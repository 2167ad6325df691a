package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"aead.dev/minisign"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/cache"
	"sonicmoe/driver"
	"sonicmoe/examples/internal/command"
	"sonicmoe/internal/outside"
	"sonicmoe/internal/store"
	"sonicmoe/jit"
	"sonicmoe/moe"
	"sonicmoe/moe/tools"
)

// publicText returns the text of a private key's public key.
func publicText(key minisign.PrivateKey) string {
	return key.Public().(minisign.PublicKey).String()
}

// signAs writes the signature file of a bundle, as the program minisign does.
func signAs(t *testing.T, key minisign.PrivateKey, bundle string, when time.Time) {
	t.Helper()
	f, err := os.Open(bundle)
	require.NoError(t, err)
	defer f.Close()
	r := minisign.NewReader(f)
	_, err = io.Copy(io.Discard, r)
	require.NoError(t, err)
	trusted := fmt.Sprintf("timestamp:%d\tfile:%s\thashed", when.Unix(), filepath.Base(bundle))
	require.NoError(t, os.WriteFile(bundle+".minisig", r.SignWithComments(key, trusted, ""), 0o600))
}

// TestSignedBundles checks that a bundle is accepted by its digest, by its signature, or by
// both, and that another bundle or another signature is refused.
func TestSignedBundles(t *testing.T) {
	t.Setenv("SONICMOE_CACHE", "off")
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	bundle := in("warm.tar")
	_, key, err := minisign.GenerateKey(nil)
	require.NoError(t, err)
	_, other, err := minisign.GenerateKey(nil)
	require.NoError(t, err)
	text, err := key.Public().(minisign.PublicKey).MarshalText()
	require.NoError(t, err)
	public := in("minisign.pub")
	require.NoError(t, os.WriteFile(public, text, 0o600))

	out := warmup(t, command.Done, "fill", "-shape", "128,64,4,2", "-tokens", "64", "-ptx-only", "-cache", in("cache"), "-export", bundle)
	now := time.Now()
	signAs(t, key, bundle, now)
	data, err := os.ReadFile(bundle)
	require.NoError(t, err)
	_, sum, ok := strings.Cut(out, "sha256         ")
	require.True(t, ok)
	sum = sum[:64]

	to := 0
	importing := func(code int, flags ...string) string {
		t.Helper()
		to++
		return warmup(t, code, append(append([]string{"import", "-cache", in(fmt.Sprint("to", to))}, flags...), bundle)...)
	}
	for _, flags := range [][]string{{"-sha256", sum}, {"-key", public}, {"-key", publicText(key)}, {"-sha256", sum, "-key", public}} {
		importing(command.Done, flags...)
		out := warmup(t, command.Done, append(append([]string{"verify"}, flags...), bundle)...)
		assert.Contains(t, out, "sha256 "+sum)
		assert.Equal(t, slices.Contains(flags, "-key"), strings.Contains(out, "signed "+now.UTC().Format(time.RFC3339)), out)
	}
	zero := strings.Repeat("0", 64)
	for _, c := range []struct {
		flags []string
		say   string
	}{
		{[]string{"-sha256", zero}, "it has the SHA-256 " + sum},
		{[]string{"-sha256", zero, "-key", public}, "it has the SHA-256 " + sum},
		{[]string{"-sha256", "123"}, "64 hexadecimal digits"},
		{[]string{"-key", publicText(other)}, "it was made with the key"},
		{[]string{"-key", bundle}, "want a public key of minisign"},
		{[]string{"-key", in("none")}, "no such file"},
	} {
		assert.Contains(t, importing(command.Failed, c.flags...), c.say, "%v", c.flags)
		assert.Contains(t, warmup(t, command.Failed, append(append([]string{"verify"}, c.flags...), bundle)...), c.say, "%v", c.flags)
		if infos, err := cache.Open(cache.Options{Dir: in(fmt.Sprint("to", to))}).List(t.Context()); err == nil {
			assert.Empty(t, infos, "%v", c.flags)
		}
	}
	assert.Contains(t, warmup(t, command.Misuse, "verify", "-sha256", sum, in("cache")), "need a bundle")

	// An older bundle must not replace a newer one.
	signAs(t, key, bundle, now.Add(-time.Hour))
	warm := []string{"import", "-cache", in("to2"), "-key", public, bundle}
	assert.Contains(t, warmup(t, command.Failed, warm...), "a newer one, of "+now.UTC().Format(time.RFC3339))
	warmup(t, command.Done, slices.Insert(warm, 1, "-older")...)

	// The bundle "evil" is valid, but has the signature of the first bundle.
	warmup(t, command.Done, "fill", "-shape", "192,64,4,2", "-tokens", "64", "-ptx-only", "-cache", in("evil"), "-export", in("evil.tar"))
	evil, err := os.ReadFile(in("evil.tar"))
	require.NoError(t, err)
	require.False(t, bytes.Equal(data, evil))
	require.NoError(t, os.WriteFile(bundle, evil, 0o644))
	importing(command.Done)
	assert.Contains(t, importing(command.Failed, "-key", public), "it is for another file")
	require.NoError(t, os.Remove(bundle+".minisig"))
	assert.Contains(t, importing(command.Failed, "-key", public), "has no signature")
}

// TestVerifyRecompiles checks that verify, which compiles everything again, finds manipulated
// machine code in a directory and in an otherwise intact bundle.
func TestVerifyRecompiles(t *testing.T) {
	outside.Ptxas(t)
	dir := t.TempDir()
	from, bundle := filepath.Join(dir, "from"), filepath.Join(dir, "warm.tar")
	c := cache.Open(cache.Options{Dir: from})
	sources, err := tools.Sources(driver.H200(), moe.Config{Hidden: 128, Intermediate: 64, NumExperts: 4, TopK: 2})
	require.NoError(t, err)
	by, err := jit.Ptxas(t.Context(), "sm_90a")
	require.NoError(t, err)
	slices.SortFunc(sources, func(a, b jit.Source) int { return len(a.Module.Print().PTX) - len(b.Module.Print().PTX) })
	require.NoError(t, jit.Warm(t.Context(), c, "sm_90a", sources[:4], jit.WarmOptions{By: by}))
	warmup(t, command.Done, "export", "-cache", from, bundle)
	for _, place := range []string{from, bundle} {
		out := warmup(t, command.Done, "verify", "-recompile", place)
		assert.Regexp(t, `\n4 images compiled again by ptxas [\d.]+: the same bytes\n`, out)
		assert.NotContains(t, out, "not compared")
	}
	infos, err := c.List(t.Context())
	require.NoError(t, err)
	key, err := store.ParseKey(infos[3].Key)
	require.NoError(t, err)
	e, outcome := store.Of(c).Get(key)
	require.Equal(t, store.Hit, outcome)
	e.Images[0].Code = bytes.Clone(e.Images[0].Code)
	e.Images[0].Code[len(e.Images[0].Code)/2] ^= 1
	require.Equal(t, store.Stored, store.Of(c).Put(key, e))
	warmup(t, command.Done, "export", "-cache", from, bundle)
	warmup(t, command.Done, "verify", from)
	warmup(t, command.Done, "verify", bundle)
	for _, place := range []string{bundle, from} {
		var out, errs bytes.Buffer
		require.Equal(t, command.Failed, program.Exit(run(t.Context(), []string{"verify", "-recompile", place}, &out, &errs), &errs))
		assert.Contains(t, out.String(), infos[3].Key)
		assert.Contains(t, out.String(), "is not what ptxas")
		assert.Contains(t, errs.String(), "1 damaged files")
	}
	warmup(t, command.Done, "verify", "-recompile", from)
	t.Setenv("PTXAS", filepath.Join(dir, "none"))
	assert.Contains(t, warmup(t, command.Failed, "verify", "-recompile", "-by", "ptxas", from), "none")
	assert.Contains(t, warmup(t, command.Misuse, "verify", "-recompile", "-by", "hand", from), "auto, ptxas or driver")
}
