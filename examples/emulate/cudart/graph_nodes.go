//go:build cgo && linux

package main

// #include "cuda.h"
import "C"

import "slices"

// addNode adds a node to a graph and stores the node's handle at p. The node depends on the `count`
// nodes whose handles lie at `after`.
func (d *device) addNode(p *uintptr, g uintptr, after *uintptr, count uintptr, n *node) error {
	to, err := look(d, d.graphs, g, "graph")
	if err != nil {
		return err
	}
	if count > 0 {
		for _, h := range addresses(after, int(count)) {
			before, err := look(d, d.nodes, h, "node of a graph")
			if err != nil {
				return err
			}
			n.after = append(n.after, before)
		}
	}
	to.add(n)
	*p = add(d, d.nodes, n)
	return nil
}

// orderOf returns the launch of a kernel node.
func (d *device) orderOf(k *C.kernel_node) (*order, error) {
	o, err := d.newOrder(uintptr(k.function), dims(k.grid), dims(k.block), uintptr(k.shared))
	if err == nil {
		if k.extra != nil {
			err = o.unpack((*uintptr)(ptrOf(k.extra)))
		} else {
			err = o.pack((*uintptr)(ptrOf(k.params)))
		}
	}
	return o, err
}

//export cudaGraphAddKernelNode
func cudaGraphAddKernelNode(p *uintptr, g uintptr, after *uintptr, count uintptr, k *C.kernel_node) int32 {
	d := dev()
	o, err := d.orderOf(k)
	if err == nil {
		err = d.addNode(p, g, after, count, o.node(d))
	}
	return result("cudaGraphAddKernelNode", err)
}

//export cudaGraphAddMemcpyNode
func cudaGraphAddMemcpyNode(p *uintptr, g uintptr, after *uintptr, count uintptr, c *C.copy_3d) int32 {
	d := dev()
	n, err := d.copy3D(c)
	if err == nil {
		err = d.addNode(p, g, after, count, n)
	}
	return result("cudaGraphAddMemcpyNode", err)
}

//export cudaGraphAddMemcpyNode1D
func cudaGraphAddMemcpyNode1D(p *uintptr, g uintptr, after *uintptr, count, to, from, bytes uintptr, kind int32) int32 {
	d := dev()
	return result("cudaGraphAddMemcpyNode1D", d.addNode(p, g, after, count, d.copyNode(block{at: to}, block{at: from}, bytes, 1, 1, kind)))
}

//export cudaGraphAddMemcpyNodeToSymbol
func cudaGraphAddMemcpyNodeToSymbol(p *uintptr, g uintptr, after *uintptr, count, symbol, from, bytes, offset uintptr, kind int32) int32 {
	d := dev()
	n, err := d.symbolNode(symbol, from, bytes, offset, kind, true)
	if err == nil {
		err = d.addNode(p, g, after, count, n)
	}
	return result("cudaGraphAddMemcpyNodeToSymbol", err)
}

//export cudaGraphAddMemcpyNodeFromSymbol
func cudaGraphAddMemcpyNodeFromSymbol(p *uintptr, g uintptr, after *uintptr, count, to, symbol, bytes, offset uintptr, kind int32) int32 {
	d := dev()
	n, err := d.symbolNode(symbol, to, bytes, offset, kind, false)
	if err == nil {
		err = d.addNode(p, g, after, count, n)
	}
	return result("cudaGraphAddMemcpyNodeFromSymbol", err)
}

//export cudaGraphAddMemsetNode
func cudaGraphAddMemsetNode(p *uintptr, g uintptr, after *uintptr, count uintptr, m *C.memset_node) int32 {
	d := dev()
	n := d.fillNode(block{at: uintptr(m.at), pitch: uintptr(m.pitch)}, uint32(m.value), uintptr(m.element), uintptr(m.width), uintptr(m.height), 1)
	return result("cudaGraphAddMemsetNode", d.addNode(p, g, after, count, n))
}

//export cudaGraphAddHostNode
func cudaGraphAddHostNode(p *uintptr, g uintptr, after *uintptr, count uintptr, h *C.host_node) int32 {
	return result("cudaGraphAddHostNode", dev().addNode(p, g, after, count, hostNode(uintptr(h.function), uintptr(h.data))))
}

//export cudaGraphAddEmptyNode
func cudaGraphAddEmptyNode(p *uintptr, g uintptr, after *uintptr, count uintptr) int32 {
	return result("cudaGraphAddEmptyNode", dev().addNode(p, g, after, count, &node{kind: nodeEmpty}))
}

//export cudaGraphAddChildGraphNode
func cudaGraphAddChildGraphNode(p *uintptr, g uintptr, after *uintptr, count, child uintptr) int32 {
	d := dev()
	c, err := look(d, d.graphs, child, "graph")
	if err == nil {
		err = d.addNode(p, g, after, count, &node{kind: nodeChild, child: c.clone()})
	}
	return result("cudaGraphAddChildGraphNode", err)
}

// list stores the handles of the wanted nodes of a graph at out, and their number at count. At the
// call, count has the room at out. If out is nil, list stores only the number.
func (d *device) list(op string, g uintptr, out, count *uintptr, want func(n *node) bool) int32 {
	x, err := look(d, d.graphs, g, "graph")
	if err != nil {
		return result(op, err)
	}
	x.mu.Lock()
	nodes := slices.DeleteFunc(slices.Clone(x.nodes), func(n *node) bool { return !want(n) })
	x.mu.Unlock()
	if out == nil {
		*count = uintptr(len(nodes))
		return 0
	}
	room := addresses(out, int(*count))
	for i := range room {
		if i < len(nodes) {
			room[i] = d.handleOf(nodes[i])
		} else {
			room[i] = 0
		}
	}
	*count = uintptr(min(len(room), len(nodes)))
	return 0
}

// handleOf returns the handle of a node. A node that a capture added has no handle before this call.
func (d *device) handleOf(n *node) uintptr {
	d.mu.Lock()
	for h, x := range d.nodes {
		if x == n {
			d.mu.Unlock()
			return h
		}
	}
	d.mu.Unlock()
	return add(d, d.nodes, n)
}

//export cudaGraphGetNodes
func cudaGraphGetNodes(g uintptr, out, count *uintptr) int32 {
	return dev().list("cudaGraphGetNodes", g, out, count, func(*node) bool { return true })
}

//export cudaGraphGetRootNodes
func cudaGraphGetRootNodes(g uintptr, out, count *uintptr) int32 {
	return dev().list("cudaGraphGetRootNodes", g, out, count, func(n *node) bool { return len(n.after) == 0 })
}

//export cudaGraphNodeGetType
func cudaGraphNodeGetType(h uintptr, kind *int32) int32 {
	n, err := look(dev(), dev().nodes, h, "node of a graph")
	if err == nil {
		*kind = n.kind
	}
	return result("cudaGraphNodeGetType", err)
}

// inExecutable returns the copy of the node h in the executable graph g.
func (d *device) inExecutable(g, h uintptr) (*node, error) {
	x, err := look(d, d.graphs, g, "executable graph")
	if err != nil {
		return nil, err
	}
	n, err := look(d, d.nodes, h, "node of a graph")
	if err != nil {
		return nil, err
	}
	c := x.copies[n]
	if c == nil {
		return nil, failed(invalidValue, "the node is not in the graph from which the executable graph was made")
	}
	return c, nil
}

// replace gives a node new work of the same kind.
func (n *node) replace(by *node) error {
	if n.kind != by.kind {
		return failed(invalidValue, "the node is of kind %d, the new work of kind %d", n.kind, by.kind)
	}
	n.order, n.launch, n.run, n.call, n.child = by.order, by.launch, by.run, by.call, by.child
	return nil
}

// change gives the copy of the node h in the executable graph g the work of the node `by`.
func (d *device) change(op string, g, h uintptr, by *node, err error) int32 {
	if err != nil {
		return result(op, err)
	}
	n, err := d.inExecutable(g, h)
	if err == nil {
		err = n.replace(by)
	}
	return result(op, err)
}

//export cudaGraphExecKernelNodeSetParams
func cudaGraphExecKernelNodeSetParams(g, h uintptr, k *C.kernel_node) int32 {
	d := dev()
	o, err := d.orderOf(k)
	if err != nil {
		return result("cudaGraphExecKernelNodeSetParams", err)
	}
	return d.change("cudaGraphExecKernelNodeSetParams", g, h, o.node(d), nil)
}

//export cudaGraphKernelNodeSetParams
func cudaGraphKernelNodeSetParams(h uintptr, k *C.kernel_node) int32 {
	d := dev()
	o, err := d.orderOf(k)
	if err == nil {
		var n *node
		if n, err = look(d, d.nodes, h, "node of a graph"); err == nil {
			err = n.replace(o.node(d))
		}
	}
	return result("cudaGraphKernelNodeSetParams", err)
}

//export cudaGraphExecMemcpyNodeSetParams
func cudaGraphExecMemcpyNodeSetParams(g, h uintptr, c *C.copy_3d) int32 {
	d := dev()
	n, err := d.copy3D(c)
	return d.change("cudaGraphExecMemcpyNodeSetParams", g, h, n, err)
}

//export cudaGraphExecMemcpyNodeSetParams1D
func cudaGraphExecMemcpyNodeSetParams1D(g, h, to, from, bytes uintptr, kind int32) int32 {
	d := dev()
	return d.change("cudaGraphExecMemcpyNodeSetParams1D", g, h, d.copyNode(block{at: to}, block{at: from}, bytes, 1, 1, kind), nil)
}

//export cudaGraphExecHostNodeSetParams
func cudaGraphExecHostNodeSetParams(g, h uintptr, p *C.host_node) int32 {
	return dev().change("cudaGraphExecHostNodeSetParams", g, h, hostNode(uintptr(p.function), uintptr(p.data)), nil)
}

//export cudaGraphNodeSetEnabled
func cudaGraphNodeSetEnabled(g, h uintptr, on uint32) int32 {
	n, err := dev().inExecutable(g, h)
	if err == nil {
		n.off = on == 0
	}
	return result("cudaGraphNodeSetEnabled", err)
}

// update gives an executable graph the work of another graph of the same shape.
func (d *device) update(h, by uintptr) error {
	x, err := look(d, d.graphs, h, "executable graph")
	if err != nil {
		return err
	}
	g, err := look(d, d.graphs, by, "graph")
	if err != nil {
		return err
	}
	c := g.clone()
	if len(c.nodes) != len(x.nodes) {
		return failed(910, "the graph has %d nodes, the executable graph %d", len(c.nodes), len(x.nodes)) // cudaErrorGraphExecUpdateFailure
	}
	for i, n := range x.nodes {
		if err := n.replace(c.nodes[i]); err != nil {
			return err
		}
	}
	return nil
}

//export cudaGraphExecUpdate
func cudaGraphExecUpdate(h, g uintptr, info *uint64) int32 {
	err := dev().update(h, g)
	if info != nil { // the first field is the outcome: 0 for success, 1 for an error
		if *info = 0; err != nil {
			*info = 1
		}
	}
	return result("cudaGraphExecUpdate", err)
}
