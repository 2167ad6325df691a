package cache

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"
)

const (
	// tempAge and lockAge are when a left-over file has no writer or holder.
	tempAge = time.Hour
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

// keepBound counts a file just stored and removes others over the bound.
func (c *Cache) keepBound(name string, size int64) {
	if c.maxBytes < 0 {
		return
	}
	u := &c.usage
	u.mu.Lock()
	defer u.mu.Unlock()
	u.bytes += size
	u.stores++
	if u.known && u.stores < rescanEvery && u.bytes <= c.maxBytes {
		return
	}
	files, err := c.top.scan()
	if err != nil {
		return
	}
	u.bytes, u.stores, u.known = storedBytes(files), 0, true
	if u.bytes > c.maxBytes {
		// A tenth below the bound, so that not every store has to scan.
		report := c.top.evict(files, PruneOptions{MaxBytes: max(1, c.maxBytes/10*9)}, name)
		c.counters.evicted.Add(int64(report.Removed))
		u.bytes = report.Left
	}
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
	Freed   int64 // their bytes
	Left    int64 // bytes of stored files that stay
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
	report := c.top.evict(files, o, "")
	c.counters.evicted.Add(int64(report.Removed))
	return report, nil
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
	report := PruneReport{Left: storedBytes(files)}
	now := time.Now()
	evictionOrder(files)
	for _, f := range files {
		age := now.Sub(f.used)
		if f.ahead {
			age = 0
		}
		switch {
		case f.class == classTemp && age > tempAge:
			_ = os.Remove(l.path(f.name))
		case f.class == classLock && age > lockAge:
			l.dropLock(f.name)
		case f.stored() && f.name != keep && o.unwanted(report.Left, age) && l.unchanged(f.name, f.info):
			if os.RemoveAll(l.path(f.name)) == nil {
				report.Removed++
				report.Freed += f.size
				report.Left -= f.size
			}
		case f.ahead: // from now on it ages
			_ = os.Chtimes(l.path(f.name), now, now)
		}
	}
	return report
}

// unwanted reports whether a file of that age must go while left bytes remain.
func (o PruneOptions) unwanted(left int64, age time.Duration) bool {
	return o.MaxAge > 0 && age > o.MaxAge || o.MaxBytes > 0 && left > o.MaxBytes || o.MaxBytes < 0
}

// dropLock removes a lock file that nobody holds.
func (l *layer) dropLock(name string) {
	f, err := os.OpenFile(l.path(name), os.O_RDWR, 0)
	if err != nil {
		return
	}
	defer f.Close()
	if busy, err := tryLock(f); err == nil && !busy {
		_ = os.Remove(l.path(name))
	}
}
