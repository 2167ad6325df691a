package parallel

import (
	"sonicmoe/driver"
	"sonicmoe/moe"
	"sonicmoe/moe/internal/exchange"
)

// rowsOut returns the exchange that sends token rows to the owners of their experts. from and to
// are the addresses of the rows to send and of the window.
func (p *pass) rowsOut(from, to driver.DevicePtr) Exchange {
	own, each := p.transport.Rank(), p.rowBytes(1)
	return Exchange{Send: from, Receive: to, SendBytes: times(p.rows[own], each), ReceiveBytes: times(column(p.rows, own), each)}
}

// pairsOut returns the exchanges, one for each chunk, that send some bytes of every pair to the
// owner of the pair's expert. The parameter each is the number of bytes of a pair. Sender and
// receiver both store pairs by chunk, then by rank.
func (p *pass) pairsOut(each int64, from, to driver.DevicePtr) (list []Exchange) {
	own := p.transport.Rank()
	for _, pairs := range p.pairs {
		e := Exchange{Send: from, Receive: to, SendBytes: times(pairs[own], each), ReceiveBytes: times(column(pairs, own), each)}
		from, to = after(from, e.SendBytes), after(to, e.ReceiveBytes)
		list = append(list, e)
	}
	return list
}

// pairsBack returns the exchanges, one for each chunk, that send some bytes of every pair from the
// owner of its expert to the token's home. The parameter each is the number of bytes of a pair.
func (p *pass) pairsBack(each int64, from, to driver.DevicePtr) []Exchange {
	list := p.pairsOut(each, to, from)
	for i := range list {
		e := &list[i]
		e.Send, e.Receive, e.SendBytes, e.ReceiveBytes = e.Receive, e.Send, e.ReceiveBytes, e.SendBytes
	}
	return list
}

// packRows packs rows for an exchange. Rows that stay on this rank are written directly to the
// receive buffer.
func (p *pass) packRows(call *moe.Call, from, index driver.DevicePtr, e *Exchange) error {
	own, each := p.transport.Rank(), p.rowBytes(1)
	e.InPlace = true
	for _, part := range []struct {
		first, end int
		to         driver.DevicePtr
	}{{0, own, e.Send}, {own, own + 1, e.To(own)}, {own + 1, len(e.SendBytes), e.From(own + 1)}} {
		n := sum(e.SendBytes[part.first:part.end]) / each
		if n == 0 {
			continue
		}
		at := index + driver.DevicePtr(4*sum(e.SendBytes[:part.first])/each)
		if err := steps.Rows(call, p.s, exchange.RowsArgs{From: from, Index: at, To: part.to, Count: int(n)}); err != nil {
			return err
		}
	}
	return nil
}

// column returns what each rank sends to one receiver: element i is of[i][to].
func column(of [][]int64, to int) []int64 {
	list := make([]int64, len(of))
	for i, row := range of {
		list[i] = row[to]
	}
	return list
}

func sum(list []int64) (n int64) {
	for _, v := range list {
		n += v
	}
	return n
}

// times returns the numbers of a list times n.
func times(list []int64, n int64) []int64 {
	product := make([]int64, len(list))
	for i, v := range list {
		product[i] = v * n
	}
	return product
}
