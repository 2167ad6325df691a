package cache

import (
	"bufio"
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/internal/child"
	"sonicmoe/internal/disk"
	"sonicmoe/internal/disktest"
	"sonicmoe/internal/store"
)

// roles are the programs that the test binary can run as another process. Their argument is the
// cache in a directory that the parent names.
var roles = map[string]func(c modules){
	"write for ever":   writeForEver,
	"stop while write": stopWhileWriting,
	"hold lock":        holdLock,
	"weather":          weather,
}

func TestMain(m *testing.M) {
	name, dir, _ := strings.Cut(child.Role(), ":")
	if role, ok := roles[name]; ok {
		role(modules{Open(Options{Dir: dir})})
		os.Exit(1) // a role runs until the process is killed, so a return is an error
	}
	os.Exit(m.Run())
}

// contested returns the entry of a seed. All these entries have the same key, which all
// processes write.
func contested(seed uint64) (store.Key, store.Entry) {
	_, e := testEntry(100+10*seed, 20<<10)
	return store.NewKey([]byte("contested")), e
}

// writeForEver puts entries of different lengths under one key.
func writeForEver(c modules) {
	key, e := contested(uint64(os.Getpid() % 4))
	os.Stdout.WriteString("ready\n")
	for {
		c.Put(key, e)
		c.Put(key, store.Entry{PTX: e.PTX[:len(e.PTX)/2]})
	}
}

// stopWhileWriting writes an entry and hangs while the entry has only its temporary name.
func stopWhileWriting(c modules) {
	files := disktest.Wrap(disk.OS)
	files.Before(func(op disktest.Op, _ string) error {
		if op == disktest.Sync {
			os.Stdout.WriteString("ready\n")
			time.Sleep(time.Hour)
		}
		return nil
	})
	modules{open(Options{Dir: c.Dir()}, files)}.Put(contested(1))
}

func holdLock(c modules) {
	key, _ := contested(0)
	c.Lock(context.Background(), key)
	os.Stdout.WriteString("ready\n")
	time.Sleep(time.Hour)
}

// other starts a process in a role and waits until the process is ready. kill ends the process
// without any clean-up.
func other(t *testing.T, role, dir string) (kill func()) {
	t.Helper()
	exe, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command(exe)
	cmd.Env = child.Env(role + ":" + dir)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	killed := false
	kill = func() {
		if !killed {
			killed = true
			_ = cmd.Process.Kill()
			_, _ = io.Copy(io.Discard, out)
			_ = cmd.Wait()
		}
	}
	t.Cleanup(kill)
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "ready", strings.TrimSpace(line))
	return kill
}

// soundOrMiss fails the test unless key is absent or holds one of the contested entries, whole.
func soundOrMiss(t *testing.T, c modules) store.Outcome {
	t.Helper()
	key, _ := contested(0)
	got, o := c.Get(key)
	if o == store.Miss {
		return o
	}
	require.Equal(t, store.Hit, o)
	for seed := range uint64(4) {
		if _, e := contested(seed); e.Covers(got) || len(got.Images) == 0 && string(got.PTX) == string(e.PTX[:len(e.PTX)/2]) {
			return o
		}
	}
	t.Fatal("the entry is a mixture of several")
	return o
}

func TestTwoProcessesWrite(t *testing.T) {
	c, log := testCache(t)
	other(t, "write for ever", c.Dir())
	other(t, "write for ever", c.Dir())
	key, e := contested(2)
	hits := 0
	for end := time.Now().Add(300 * time.Millisecond); time.Now().Before(end); {
		if soundOrMiss(t, c) == store.Hit {
			hits++
		}
		require.Contains(t, []store.Outcome{store.Stored, store.Unchanged}, c.Put(key, e))
	}
	assert.Positive(t, hits)
	assert.Empty(t, log.warnings())
}

func TestKilledWriters(t *testing.T) {
	c, log := testCache(t)
	for range 8 {
		kill := other(t, "write for ever", c.Dir())
		time.Sleep(5 * time.Millisecond)
		kill()
		soundOrMiss(t, c)
	}
	r, err := c.Verify(context.Background())
	require.NoError(t, err)
	assert.Empty(t, r.Damaged)
	assert.Empty(t, log.warnings())
}

func TestKilledInTheMiddleOfAWrite(t *testing.T) {
	c, _ := testCache(t)
	key, e := contested(0)
	temporary := func() []string {
		list, err := filepath.Glob(c.top.path("*" + tempSuffix))
		require.NoError(t, err)
		return list
	}
	kill := other(t, "stop while write", c.Dir())
	_, o := c.Get(key)
	assert.Equal(t, store.Miss, o)
	require.Len(t, temporary(), 1)
	kill()
	_, o = c.Get(key)
	assert.Equal(t, store.Miss, o)
	require.Equal(t, store.Stored, c.Put(key, e))
	other(t, "stop while write", c.Dir())()
	got, o := c.Get(key)
	assert.Equal(t, store.Hit, o)
	assert.Equal(t, e, got, "the old entry stays")

	left := temporary()
	require.Len(t, left, 2)
	setAge(t, left[0], 2*disk.TempAge)
	_, err := c.Prune(context.Background(), PruneOptions{})
	require.NoError(t, err)
	assert.Equal(t, left[1:], temporary(), "only old files are removed")
}

func TestLockAcrossProcesses(t *testing.T) {
	c, _ := testCache(t, func(o *Options) { o.LockWait = 50 * time.Millisecond })
	requireLocks(t, c)
	kill := other(t, "hold lock", c.Dir())
	key, _ := contested(0)
	free := store.NewKey([]byte("another key"))

	c.Lock(context.Background(), free)()
	assert.Zero(t, c.Stats().LockTimeouts, "locks are by key")

	start := time.Now()
	c.Lock(context.Background(), key)()
	assert.GreaterOrEqual(t, time.Since(start), 50*time.Millisecond)
	assert.EqualValues(t, 1, c.Stats().LockTimeouts)

	patient := modules{Open(Options{Dir: c.Dir(), LockWait: time.Minute})}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Millisecond)
	defer cancel()
	start = time.Now()
	patient.Lock(ctx, key)()
	assert.Less(t, time.Since(start), 10*time.Second, "the end of the context ends the wait")

	kill()
	patient.Lock(context.Background(), key)()
	assert.Less(t, time.Since(start), 30*time.Second, "a dead process holds no lock")
	assert.Zero(t, patient.Stats().LockTimeouts)
}

func TestLockWithinProcess(t *testing.T) {
	c, _ := testCache(t)
	requireLocks(t, c)
	key := store.NewKey()
	unlock := c.Lock(context.Background(), key)
	got := make(chan struct{})
	go func() {
		defer close(got)
		c.Lock(context.Background(), key)()
	}()
	select {
	case <-got:
		t.Error("two holders")
	case <-time.After(30 * time.Millisecond):
	}
	unlock()
	unlock()
	<-got
	assert.Zero(t, c.Stats().LockTimeouts)
}

// requireLocks skips the test if files cannot be locked.
func requireLocks(t *testing.T, c modules) {
	t.Helper()
	f, err := disk.OS.Create(filepath.Join(t.TempDir(), "probe"))
	require.NoError(t, err)
	defer f.Close()
	if _, err := f.TryLock(); err != nil {
		t.Skipf("no locks on %s: %v", runtime.GOOS, err)
	}
}
