package main

import (
	"flag"

	"sonicmoe/cache"
)

// origin holds the flags that say which bundles are accepted: the digest of a bundle, and a
// public key.
type origin struct {
	digest, key string
}

// originFlags declares the flags -sha256 and -key.
func originFlags(set *flag.FlagSet) *origin {
	o := &origin{}
	set.StringVar(&o.digest, "sha256", "", "refuse a bundle with another SHA-256 than this, in `hex` as export prints it")
	set.StringVar(&o.key, "key", "", "refuse a bundle without a signature, in the file BUNDLE.minisig, by this public `key` of the program minisign: its text or its file (default: SONICMOE_CACHE_KEY)")
	return o
}

// checks returns the options for the check of -sha256.
func (o *origin) checks() cache.BundleOptions { return cache.BundleOptions{SHA256: o.digest} }
