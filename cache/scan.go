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

// class is the kind of a file in the folder. Lower classes are removed first.
type class int

const (
	classTemp   class = iota // being written, or left by a dead process
	classLock                // advisory locks, empty
	classBad                 // set aside
	classModule              // recompiled in about a second
	classChoice              // small, and costs minutes of tuning
	classOther               // not of the cache: never changed
)

// file is one file of a layer.
type file struct {
	name  string
	class class
	kind  store.Kind
	key   store.Key
	size  int64
	used  time.Time
	// ahead reports that used is in the future because a clock was or is wrong. The
	// true time of use is not known.
	ahead bool
	info  fs.FileInfo
}

// stored reports whether the file is a module or a choice.
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

// scan lists the layer's own files, without those that vanish meanwhile.
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

// countedBytes returns the size of the files that count towards the size limit:
// stored files, and files being written or left by dead processes.
func countedBytes(files []file) (sum int64) {
	for _, f := range files {
		if f.stored() || f.class == classTemp {
			sum += f.size
		}
	}
	return sum
}

// evictionOrder sorts by class, then the least recently used first. Files with a
// time in the future come first: otherwise, after the clock was set back, files
// stored and used now would always be the oldest.
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
