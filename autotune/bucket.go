package autotune

import "fmt"

// Bucket is a range of rows per expert. Keys of choices contain a bucket and no token
// count, so a layer meets only a few keys in its life.
type Bucket int

// bucketEnds has the last number of rows of each bucket, except for the last bucket, which
// has no end.
var bucketEnds = [...]int{32, 128, 512, 2048}

// Buckets is the number of buckets.
const Buckets = Bucket(len(bucketEnds) + 1)

// BucketOf returns the bucket of a number of rows per expert, averaged over the experts.
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

// String returns the key as listings of a cache show it.
func (k Key) String() string {
	return fmt.Sprintf("tuned %s on %s, %d SMs, %v rows an expert", k.Subject, k.GPU, k.SMs, k.Bucket)
}
