package autotune

import "fmt"

// Bucket is a range of rows per expert. The key of a choice contains a bucket instead of a
// number of tokens, so that a layer needs only a few choices.
type Bucket int

// bucketEnds holds the largest number of rows of each bucket, except the last, which has no
// upper end.
var bucketEnds = [...]int{32, 128, 512, 2048}

// Buckets is the number of buckets.
const Buckets = Bucket(len(bucketEnds) + 1)

// BucketOf returns the bucket for a number of rows per expert. The number is the mean over the
// experts.
func BucketOf(rows int) Bucket {
	for i, end := range bucketEnds {
		if rows <= end {
			return Bucket(i)
		}
	}
	return Buckets - 1
}

// String returns the bucket's range, such as "129-512" or "2049 and more".
func (b Bucket) String() string {
	switch {
	case b < 0 || b >= Buckets:
		return fmt.Sprintf("Bucket(%d)", int(b))
	case b == 0:
		return fmt.Sprintf("1-%d", bucketEnds[0])
	case b == Buckets-1:
		return fmt.Sprintf("%d and more", bucketEnds[b-1]+1)
	}
	return fmt.Sprintf("%d-%d", bucketEnds[b-1]+1, bucketEnds[b])
}

// Key is the key under which a choice is stored.
type Key struct {
	// Subject names what is tuned: the layer's configuration and the kernel.
	Subject string
	// GPU and SMs are the chip's name and number of multiprocessors.
	GPU string
	SMs int
	// Bucket is the range of rows per expert.
	Bucket Bucket
}

// String returns the key in the form that listings of a cache show.
func (k Key) String() string {
	return fmt.Sprintf("tuned %s on %s, %d SMs, %v rows an expert", k.Subject, k.GPU, k.SMs, k.Bucket)
}
