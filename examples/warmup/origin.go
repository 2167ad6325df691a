package main

import (
	"flag"

	"sonicmoe/cache"
)

// origin is the required origin of a bundle.
type origin struct {
	digest, key string
}

// originFlags declares -sha256 and -key.
func originFlags(set *flag.FlagSet) *origin {
	o := &origin{}
	set.StringVar(&o.digest, "sha256", "", "refuse a bundle with another SHA-256 than this, in `hex` as export prints it")
	set.StringVar(&o.key, "key", "", "refuse a bundle without a signature, in the file BUNDLE.minisig, by this public `key` of the program minisign: its text or its file (default: SONICMOE_CACHE_KEY)")
	return o
}

// checks returns the bundle checks of -sha256.
func (o *origin) checks() cache.BundleOptions { return cache.BundleOptions{SHA256: o.digest} }
