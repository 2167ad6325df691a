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
	// lockAge is the age at which a left-over lock file certainly has no holder any more.
	lockAge = 24 * time.Hour
	// rescanEvery is the number of stored files after which the folder's size is measured
	// again. Other processes write to the folder too, and change its size.
	rescanEvery = 64
)

// usage estimates the bytes in the written directory between two scans.
type usage struct {
	mu     sync.Mutex
	stores int // number of stored files since the previous scan
	bytes  int64
	known  bool
}

// keepBound counts a file that was just stored, and removes others if the size limit is exceeded.
// Its first call also removes files that were left behind by processes that have ended.
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
		o.MaxBytes = max(1, c.maxBytes/10*9) // a margin, so that not every stored file causes a scan
	}
	u.bytes = c.evict(files, o, name).Left
}

// makeRoom removes the least recently used files when the disk is full, so that a file of the
// given size may fit. It reports whether it removed any file.
func (c *Cache) makeRoom(name string, size int64) bool {
	c.usage.mu.Lock()
	defer c.usage.mu.Unlock()
	files, err := c.top.scan()
	if err != nil {
		return false
	}
	have := countedBytes(files)
	if have < size {
		return false // the cache is not what fills the disk
	}
	report := c.evict(files, PruneOptions{MaxBytes: max(1, have-max(2*size, have/10))}, name)
	c.usage.bytes = report.Left
	return report.Freed > 0
}

// evict calls [layer.evict] and counts the removed files in the statistics.
func (c *Cache) evict(files []file, o PruneOptions, keep string) PruneReport {
	report := c.top.evict(files, o, keep)
	c.counters.evicted.Add(int64(report.Removed))
	return report
}

// PruneOptions selects the files that Prune removes. The zero value removes only files that were
// left behind by processes that have ended.
type PruneOptions struct {
	// MaxBytes is the total size of the files that may stay. 0 means no limit, and a negative
	// value removes all files.
	MaxBytes int64
	// MaxAge is the longest time for which an unused file stays. 0 means no limit. Times of use are
	// accurate to an hour.
	MaxAge time.Duration
}

// PruneReport is the result of Prune.
type PruneReport struct {
	Removed int   // number of stored files removed: modules, choices and damaged files
	Freed   int64 // bytes of these files, and of temporary files that ended processes left behind
	Left    int64 // bytes of the files that remain
}

// Prune removes files from the directory that is written. It removes damaged files first, then
// modules, then choices, and among these the least recently used first. A file that is used or
// replaced in the meantime stays.
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

// noTop returns the reason why there is no directory to write.
func (c *Cache) noTop() error {
	if err := c.Err(); err != nil {
		return err
	}
	return errors.New("the cache is off or read-only")
}

// evict removes left-over files. It then removes, in eviction order, the files that exceed the
// limits in o. It never removes the file whose name is the parameter keep.
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
		case f.ahead: // the file's age counts from now on
			_ = l.fs.SetTime(l.path(f.name), now)
		}
	}
	return report
}

// unwanted reports whether a file of the given age must be removed if files of left bytes
// remain.
func (o PruneOptions) unwanted(left int64, age time.Duration) bool {
	return o.MaxAge > 0 && age > o.MaxAge || o.MaxBytes > 0 && left > o.MaxBytes || o.MaxBytes < 0
}

// gone counts the bytes of a removed file.
func (r *PruneReport) gone(f file) {
	r.Freed += f.size
	r.Left -= f.size
}

// dropLock removes a lock file that no process holds.
func (l *layer) dropLock(name string) {
	if unlock, err := disk.Lock(context.Background(), l.fs, l.path(name), 0); err == nil {
		unlock()
	}
}
