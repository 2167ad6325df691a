//go:build !unix

package disk

// There are no pipes among files here, and only administrators may create links.
const noWait = 0

func noFollow(bool) int { return 0 }

// syncDir does nothing here, because directories cannot be synced.
func syncDir(string) error { return nil }
