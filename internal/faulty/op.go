package faulty

import "strconv"

// Op is a method of the driver's interfaces that can fail.
type Op uint8

// The operations; Any stands for all of them in a Fault and a Count.
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

// String is the method's name, with its interface where two have the same.
func (o Op) String() string {
	if o >= opCount {
		return "Op(" + strconv.Itoa(int(o)) + ")"
	}
	return opNames[o]
}

// releases reports whether the operation gives something back. A broken
// device refuses none of these but Free, as real ones do.
func (o Op) releases() bool {
	switch o {
	case Unload, StreamClose, EventClose, GraphClose:
		return true
	}
	return false
}
