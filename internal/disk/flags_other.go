//go:build !unix

package disk

// noWait is 0 because here no pipe has a name in the file system. Links need no flag either,
// because only administrators may create them.
const noWait = 0

func noFollow(bool) int { return 0 }

// syncDir does nothing here, because directories cannot be synced.
func syncDir(string) error { return nil }
