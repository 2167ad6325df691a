package cache

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/internal/store"
)

// TestEveryAlterationIsRefused cuts a small entry at every length and flips every bit. Each
// result must be refused.
func TestEveryAlterationIsRefused(t *testing.T) {
	key, e := testEntry(1, 300)
	file, err := encodeEntry(key, e)
	require.NoError(t, err)
	got, err := decodeEntry(file, key)
	require.NoError(t, err)
	assert.Equal(t, e, got)

	for n := range file {
		_, err := decodeEntry(file[:n], key)
		require.ErrorIs(t, err, errDamaged, "%d of %d bytes", n, len(file))
	}
	for bit := range 8 * len(file) {
		bad := bytes.Clone(file)
		bad[bit/8] ^= 1 << (bit % 8)
		_, err := decodeEntry(bad, key)
		require.ErrorIs(t, err, errDamaged, "bit %d", bit)
	}
	_, err = decodeEntry(file, store.NewKey())
	assert.ErrorIs(t, err, errDamaged)
}

func TestChoiceUnderAnotherName(t *testing.T) {
	name := choiceKey("a")
	file, err := seal(store.KindChoice, name, []byte("b"), []byte("value"))
	require.NoError(t, err)
	_, _, err = decodeChoice(file, name)
	assert.ErrorIs(t, err, errDamaged)
}

func TestTooLargeIsRefused(t *testing.T) {
	huge := make([]byte, maxFileBytes/4)
	_, err := seal(store.KindModule, store.Key{}, huge, huge, huge, huge)
	assert.ErrorContains(t, err, "at most")
}

// FuzzDecode alters a good file. If the decoder accepts the result, encoding the decoded entry
// must give the same bytes. If sealed is true, the altered bytes get a valid header and
// checksum, to test the checks that come after these.
func FuzzDecode(f *testing.F) {
	key, e := testEntry(1, 100)
	file, err := encodeEntry(key, e)
	require.NoError(f, err)
	f.Add(file, false)
	f.Add(file[headerSize:len(file)-sealSize], true)
	f.Add([]byte{0, 0, 0, 0, 0, 0, 0, 0}, true)
	f.Add([]byte{255, 255, 255, 255}, true)
	f.Fuzz(func(t *testing.T, data []byte, sealed bool) {
		if sealed {
			// The data becomes the content of a first field, whose header is removed below.
			whole, err := seal(store.KindModule, key, data)
			require.NoError(t, err)
			whole = append(whole[:headerSize:headerSize], whole[headerSize+4:]...)
			whole[16], whole[17], whole[18], whole[19] = byte(len(whole)), byte(len(whole)>>8), byte(len(whole)>>16), byte(len(whole)>>24)
			data = reseal(whole)
		}
		e, err := decodeEntry(data, key)
		if err != nil {
			if !isDamage(err) {
				t.Fatalf("untyped error: %v", err)
			}
			return
		}
		again, err := encodeEntry(key, e)
		if err != nil || !bytes.Equal(again, data) {
			t.Fatalf("accepted %d bytes that encode as %d others: %v", len(data), len(again), err)
		}
	})
}
