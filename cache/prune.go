package cache

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"sonicmoe/internal/disk"
)

const (
	// lockAge is when a left-over lock has no holder.
	lockAge = 24 * time.Hour
	// rescanEvery is after how many stored files the folder is measured anew:
	// other processes write there too.
	rescanEvery = 64
)

// usage estimates the bytes in the top layer between two scans.
type usage struct {
	mu     sync.Mutex
	stores int // since the last scan
	bytes  int64
	known  bool
}

// keepBound counts a file just stored and removes others over the bound. The
// first time it also sweeps what dead processes have left.
func (c *Cache) keepBound(name string, size int64) {
	u := &c.usage
	u.mu.Lock()
	defer u.mu.Unlock()
	u.bytes += size
	u.stores++
	if u.known && (c.maxBytes < 0 || u.stores < rescanEvery && u.bytes <= c.maxBytes) {
		return
	}
	files, err := c.top.scan()
	if err != nil {
		return
	}
	u.bytes, u.stores, u.known = countedBytes(files), 0, true
	var o PruneOptions
	if c.maxBytes >= 0 && u.bytes > c.maxBytes {
		o.MaxBytes = max(1, c.maxBytes/10*9) // below the bound, so that not every store has to scan
	}
	u.bytes = c.evict(files, o, name).Left
}

// makeRoom removes the least recently used files of a full disk, so that a file
// of that size may fit, and reports whether any went.
func (c *Cache) makeRoom(name string, size int64) bool {
	c.usage.mu.Lock()
	defer c.usage.mu.Unlock()
	files, err := c.top.scan()
	if err != nil {
		return false
	}
	have := countedBytes(files)
	if have < size {
		return false // not the cache has filled the disk
	}
	report := c.evict(files, PruneOptions{MaxBytes: max(1, have-max(2*size, have/10))}, name)
	c.usage.bytes = report.Left
	return report.Freed > 0
}

// evict is the layer's, counted.
func (c *Cache) evict(files []file, o PruneOptions, keep string) PruneReport {
	report := c.top.evict(files, o, keep)
	c.counters.evicted.Add(int64(report.Removed))
	return report
}

// PruneOptions says what Prune removes. The zero value removes only what
// processes that died have left behind.
type PruneOptions struct {
	// MaxBytes is how much may stay; 0 means no bound, less than 0 nothing.
	MaxBytes int64
	// MaxAge removes what was not used for so long; 0 means no bound. Uses are
	// noted once an hour.
	MaxAge time.Duration
}

// PruneReport is what Prune did.
type PruneReport struct {
	Removed int   // stored files removed: modules, choices, damaged ones
	Freed   int64 // their bytes and those of left-overs
	Left    int64 // bytes of what stays
}

// Prune removes files from the directory that is written: damaged ones first,
// then modules, then choices, the least recently used first. A file that is
// used or replaced at that moment stays.
func (c *Cache) Prune(ctx context.Context, o PruneOptions) (PruneReport, error) {
	if err := ctx.Err(); err != nil {
		return PruneReport{}, err
	}
	if c.top == nil {
		return PruneReport{}, fmt.Errorf("cache: prune: %w", c.noTop())
	}
	files, err := c.top.scan()
	if err != nil {
		return PruneReport{}, fmt.Errorf("cache: prune: %w", err)
	}
	return c.evict(files, o, ""), nil
}

// noTop says why there is no directory to change.
func (c *Cache) noTop() error {
	if err := c.Err(); err != nil {
		return err
	}
	return errors.New("the cache is off or read-only")
}

// evict removes left-overs and, in eviction order, what o does not allow. The
// file named keep stays.
func (l *layer) evict(files []file, o PruneOptions, keep string) PruneReport {
	report := PruneReport{Left: countedBytes(files)}
	now := time.Now()
	evictionOrder(files)
	for _, f := range files {
		age := now.Sub(f.used)
		if f.ahead {
			age = 0
		}
		switch {
		case f.class == classTemp && age > disk.TempAge:
			if l.fs.Remove(l.path(f.name)) == nil {
				report.gone(f)
			}
		case f.class == classLock && age > lockAge:
			l.dropLock(f.name)
		case f.stored() && f.name != keep && o.unwanted(report.Left, age) && l.unchanged(f.name, f.info):
			if l.fs.RemoveAll(l.path(f.name)) == nil {
				report.Removed++
				report.gone(f)
			}
		case f.ahead: // from now on it ages
			_ = l.fs.SetTime(l.path(f.name), now)
		}
	}
	return report
}

// unwanted reports whether a file of that age must go while left bytes remain.
func (o PruneOptions) unwanted(left int64, age time.Duration) bool {
	return o.MaxAge > 0 && age > o.MaxAge || o.MaxBytes > 0 && left > o.MaxBytes || o.MaxBytes < 0
}

// gone counts a removed file.
func (r *PruneReport) gone(f file) {
	r.Freed += f.size
	r.Left -= f.size
}

// dropLock removes a lock file that nobody holds.
func (l *layer) dropLock(name string) {
	if unlock, err := disk.Lock(context.Background(), l.fs, l.path(name), 0); err == nil {
		unlock()
	}
}
