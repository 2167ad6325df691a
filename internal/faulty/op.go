package faulty

import "strconv"

// Op is a method of the driver's interfaces that can fail.
type Op uint8

// These are the operations. Any stands for all operations in a Fault and in Count.
const (
	Any Op = iota
	Compile
	Load
	Alloc
	Free
	Memory
	NewStream
	NewEvent
	EncodeTensorMap
	MaxActiveClusters
	DeviceSynchronize
	FindFunction
	Unload
	Attributes
	AllowSharedBytes
	Launch
	CopyToDevice
	CopyToHost
	Copy
	Fill32
	AllocAsync
	FreeAsync
	Wait
	StreamSynchronize
	BeginCapture
	EndCapture
	StreamClose
	Record
	Done
	EventSynchronize
	Since
	EventClose
	GraphLaunch
	GraphClose
	opCount
)

var opNames = [opCount]string{
	"any", "Compile", "Load", "Alloc", "Free", "Memory", "NewStream", "NewEvent", "EncodeTensorMap", "MaxActiveClusters",
	"Device.Synchronize", "Module.Function", "Module.Unload", "Attributes", "AllowSharedBytes",
	"Launch", "CopyToDevice", "CopyToHost", "Copy", "Fill32", "AllocAsync", "FreeAsync", "Wait", "Stream.Synchronize",
	"BeginCapture", "EndCapture", "Stream.Close",
	"Record", "Done", "Event.Synchronize", "Since", "Event.Close", "Graph.Launch", "Graph.Close",
}

// String returns the method's name. If two interfaces have a method of this name, String adds
// the interface.
func (o Op) String() string {
	if o >= opCount {
		return "Op(" + strconv.Itoa(int(o)) + ")"
	}
	return opNames[o]
}

// releases reports whether the operation releases an object. A broken device refuses Free, but
// none of the other releasing operations, as real devices do.
func (o Op) releases() bool {
	switch o {
	case Unload, StreamClose, EventClose, GraphClose:
		return true
	}
	return false
}
