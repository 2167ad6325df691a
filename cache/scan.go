package cache

import (
	"cmp"
	"io/fs"
	"slices"
	"strings"
	"time"

	"sonicmoe/internal/disk"
	"sonicmoe/internal/store"
)

// class is what a file of the folder is; a lower class is removed first.
type class int

const (
	classTemp   class = iota // being written, or left by a process that died
	classLock                // courtesy locks, empty
	classBad                 // set aside
	classModule              // can be compiled again in a second
	classChoice              // small, and minutes of tuning
	classOther               // not ours: never touched
)

// file is one file of a layer.
type file struct {
	name  string
	class class
	kind  store.Kind
	key   store.Key
	size  int64
	used  time.Time
	// ahead says that used lies in the future: the clock was wrong then or is
	// now. When it was used is not known.
	ahead bool
	info  fs.FileInfo
}

// stored reports whether the file is of the cache's content.
func (f file) stored() bool {
	return f.class == classBad || f.class == classModule || f.class == classChoice
}

// classify reads a file's name.
func classify(name string) (class, store.Kind, store.Key) {
	switch {
	case strings.HasSuffix(name, tempSuffix):
		of, _ := disk.IsTemp(name)
		if _, _, ok := parseFileName(of); ok {
			return classTemp, 0, store.Key{}
		}
	case strings.HasSuffix(name, lockSuffix):
		if _, err := store.ParseKey(strings.TrimSuffix(name, lockSuffix)); err == nil {
			return classLock, 0, store.Key{}
		}
	case strings.HasSuffix(name, badSuffix):
		if _, _, ok := parseFileName(strings.TrimSuffix(name, badSuffix)); ok {
			return classBad, 0, store.Key{}
		}
	}
	kind, key, ok := parseFileName(name)
	switch {
	case ok && kind == store.KindModule:
		return classModule, kind, key
	case ok && kind == store.KindChoice:
		return classChoice, kind, key
	}
	return classOther, 0, store.Key{}
}

// scan lists the layer's own files; those that vanish meanwhile are left out.
func (l *layer) scan() ([]file, error) {
	if l.bundle != nil {
		return l.bundle.scan()
	}
	entries, err := l.fs.ReadDir(l.dir)
	if err != nil {
		return nil, err
	}
	var files []file
	for _, e := range entries {
		class, kind, key := classify(e.Name())
		if class == classOther {
			continue
		}
		info, err := l.fs.Stat(l.path(e.Name()), !l.writable)
		if err != nil {
			continue
		}
		files = append(files, file{e.Name(), class, kind, key, info.Size(), info.ModTime(), time.Until(info.ModTime()) > touchEvery, info})
	}
	return files, nil
}

// countedBytes sums the files that count towards the size bound: what is
// stored, and what is being written or was left by a process that died.
func countedBytes(files []file) (sum int64) {
	for _, f := range files {
		if f.stored() || f.class == classTemp {
			sum += f.size
		}
	}
	return sum
}

// evictionOrder sorts by class, then least recently used first. Files from the
// future go before others: after the clock was set back, what is stored and
// used now would otherwise always be the oldest.
func evictionOrder(files []file) {
	rank := func(f file) int {
		if f.ahead {
			return 0
		}
		return 1
	}
	slices.SortFunc(files, func(a, b file) int {
		return cmp.Or(cmp.Compare(a.class, b.class), cmp.Compare(rank(a), rank(b)), a.used.Compare(b.used))
	})
}
