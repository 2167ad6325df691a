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

// class is the kind of a file in the folder. Files of lower classes are removed first.
type class int

const (
	classTemp   class = iota // being written, or left by a process that has ended
	classLock                // lock files, which are empty
	classBad                 // damaged files that were set aside
	classModule              // recompiled in about a second
	classChoice              // small, and costs minutes of tuning
	classOther               // does not belong to the cache, and is never changed
)

// file is one file in a cache layer.
type file struct {
	name  string
	class class
	kind  store.Kind
	key   store.Key
	size  int64
	used  time.Time
	// ahead reports whether used is in the future, because some clock was or is wrong. The true
	// time of use is then not known.
	ahead bool
	info  fs.FileInfo
}

// stored reports whether the file is a module, a choice, or a damaged file that was set aside.
func (f file) stored() bool {
	return f.class == classBad || f.class == classModule || f.class == classChoice
}

// classify determines the class of a file by its name.
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

// scan lists the layer's own files. It leaves out files that are removed meanwhile.
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

// countedBytes returns the total size of the files that count towards the size limit: stored
// files, and temporary files, which are being written or were left by a process that has ended.
func countedBytes(files []file) (sum int64) {
	for _, f := range files {
		if f.stored() || f.class == classTemp {
			sum += f.size
		}
	}
	return sum
}

// evictionOrder sorts files by class, and within a class the least recently used first. Files
// with a time in the future come first. Otherwise, after the clock was set back, files stored
// and used now would seem to be the oldest.
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
