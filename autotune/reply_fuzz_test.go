package autotune

import (
	"bytes"
	"testing"
)

// FuzzReplies checks that a reply on a line of its own is read unchanged between lines of other
// output. After a line that is too long, nothing may be read.
func FuzzReplies(f *testing.F) {
	f.Add([]byte("garbage"))
	f.Add([]byte(`{"N":1,"Time":5}` + "\n" + `{"N":2,"Error":"\u0000","Broken":true}`))
	f.Add([]byte("\r\n\x00{}\n[]\nnull"))
	f.Fuzz(func(t *testing.T, noise []byte) {
		want := reply{N: 7, Error: "wrong\n\"answer\"", Broken: true, Time: 12}
		var pipe bytes.Buffer
		pipe.Write(noise)
		pipe.WriteByte('\n')
		if err := (worker{out: &pipe}).answer(want); err != nil {
			t.Fatal(err)
		}
		var last reply
		eachReply(&pipe, func(a reply) bool { last = a; return true })
		if len(noise) < mostReplyBytes && last != want {
			t.Fatalf("%+v arrived, %+v was sent", last, want)
		}
	})
}
