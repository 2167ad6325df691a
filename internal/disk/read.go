package disk

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
)

// ErrNotRegular means that a path that must name a regular file names a directory, a pipe, a
// device or the like.
var ErrNotRegular = errors.New("must be a regular file")

// ErrTooLarge means that a file is longer than its reader allows.
var ErrTooLarge = errors.New("file is too large")

// OpenRegular opens a regular file for reading. It does not wait for the other end of a pipe.
// If links is false, a symbolic link is an error, too. If the error is ErrNotRegular,
// OpenRegular also returns the file info.
func OpenRegular(fsys FS, path string, links bool) (File, fs.FileInfo, error) {
	f, err := fsys.Open(path, links)
	if err != nil {
		// A socket cannot be opened, and neither can a link that must not be followed.
		if fi, e := fsys.Stat(path, links); e == nil && !fi.Mode().IsRegular() {
			return nil, fi, notRegular(path, fi)
		}
		return nil, nil, err
	}
	// The info must describe the file that was opened, because the path may name another file a
	// moment later.
	fi, err := f.Stat()
	if err == nil && !fi.Mode().IsRegular() {
		err = notRegular(path, fi)
	}
	if err != nil {
		_ = f.Close() // the first error is reported
		return nil, fi, err
	}
	return f, fi, nil
}

func notRegular(path string, fi fs.FileInfo) error {
	kind := "a special file"
	switch mode := fi.Mode(); {
	case mode.IsDir():
		kind = "a directory"
	case mode&fs.ModeSymlink != 0:
		kind = "a symbolic link"
	case mode&fs.ModeNamedPipe != 0:
		kind = "a named pipe"
	case mode&fs.ModeSocket != 0:
		kind = "a socket"
	case mode&fs.ModeDevice != 0:
		kind = "a device"
	}
	return fmt.Errorf("%s is %s, %w", path, kind, ErrNotRegular)
}

// ReadFile returns the content of a regular file of at most limit bytes. It
// follows symbolic links. A longer file is an [ErrTooLarge] and is not read. Any
// other kind of file is an [ErrNotRegular]. ReadFile returns when ctx ends, even
// if the file system hangs.
func ReadFile(ctx context.Context, fsys FS, path string, limit int64) ([]byte, error) {
	type result struct {
		data []byte
		err  error
	}
	done := make(chan result, 1)
	err := ctx.Err()
	if err == nil {
		go func() {
			data, err := readFile(ctx, fsys, path, limit)
			done <- result{data, err}
		}()
		select {
		case r := <-done:
			return r.data, r.err
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	return nil, &fs.PathError{Op: "read", Path: path, Err: err}
}

func readFile(ctx context.Context, fsys FS, path string, limit int64) ([]byte, error) {
	f, fi, err := OpenRegular(fsys, path, true)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if fi.Size() > limit {
		return nil, fmt.Errorf("%s: %w: %d bytes, must be at most %d", path, ErrTooLarge, fi.Size(), limit)
	}
	var b bytes.Buffer
	b.Grow(int(fi.Size()) + bytes.MinRead)
	// The size from Stat does not bound the read: the file may grow, and files in /proc have size 0.
	if _, err := b.ReadFrom(io.LimitReader(contextReader{ctx, f}, limit+1)); err != nil {
		return nil, err
	}
	if int64(b.Len()) > limit {
		return nil, fmt.Errorf("%s: %w: more than %d bytes", path, ErrTooLarge, limit)
	}
	return b.Bytes(), nil
}

// contextReader is a reader that fails once its context has ended.
type contextReader struct {
	ctx context.Context
	r   io.Reader
}

func (c contextReader) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	return c.r.Read(p)
}
