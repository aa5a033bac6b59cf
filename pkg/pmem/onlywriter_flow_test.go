package pmem_test

import (
	"cmp"
	"go/ast"
	"go/constant"
	"go/token"
	"go/types"
	"maps"
	"slices"
	"strings"
)

// byteFlow follows the bytes of mappings through a program.
//
// Each expression has labels, the objects whose bytes it may be: mapped for what
// Bytes() returns, else a parameter, field or package variable. Local variables
// have the labels of all that is assigned to them, in whatever order. A function
// is summarised by which of its parameters it writes to and which labels its
// results have, so that it may be called for a mapping in one place and for a
// copy in another. A struct has the labels of all its fields, as long as it is
// used by value. Behind a pointer a field is the same in every struct of the
// type. A call through a function value is a call of every function that was
// ever assigned to it, one through an interface of every method in the program
// that it may be. A function outside the program writes to what it is given
// unless it is among the readers.
type byteFlow struct {
	fset     *token.FileSet
	space    *types.Interface
	packages []*sourcePackage
	funcs    map[any]*flowFunc // by *types.Func or *ast.FuncLit
	named    []*types.Named    // types of the program, for interface calls

	labels  map[types.Object]labelSet
	mapped  map[types.Object]bool // may be a mapping wherever it is used
	written map[types.Object]bool // parameters that their function writes to
	bound   map[types.Object]map[*flowFunc]bool

	changed   bool
	reporting bool
	findings  []finding
	sources   int
}

// finding is a place where a mapping is written to.
type finding struct {
	token.Position
	function string // in which it is
}

// mapping labels what Bytes() of a Space returns.
var mapping types.Object = types.NewLabel(token.NoPos, nil, "mapping")

type labelSet map[types.Object]bool

// flowFunc is a function declaration or literal.
type flowFunc struct {
	name    string // of a declaration
	info    *types.Info
	body    *ast.BlockStmt
	params  []types.Object // the receiver first
	sig     *types.Signature
	results []labelSet
	returns []map[*flowFunc]bool // functions that it returns
}

func newByteFlow(fset *token.FileSet, space *types.Interface) *byteFlow {
	return &byteFlow{
		fset: fset, space: space,
		funcs:   map[any]*flowFunc{},
		labels:  map[types.Object]labelSet{},
		mapped:  map[types.Object]bool{mapping: true},
		written: map[types.Object]bool{},
		bound:   map[types.Object]map[*flowFunc]bool{},
	}
}

// add makes a package part of the program.
func (a *byteFlow) add(p *sourcePackage) {
	a.packages = append(a.packages, p)
	for _, name := range p.types.Scope().Names() {
		if named, ok := p.types.Scope().Lookup(name).Type().(*types.Named); ok {
			a.named = append(a.named, named)
		}
	}
	for _, file := range p.files {
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				if fn := p.info.Defs[n.Name].(*types.Func); n.Body != nil {
					a.funcs[fn] = newFlowFunc(p.info, n.Body, fn.Type().(*types.Signature))
					a.funcs[fn].name = fn.FullName()
				}
			case *ast.FuncLit:
				a.funcs[n] = newFlowFunc(p.info, n.Body, p.info.TypeOf(n).(*types.Signature))
			}
			return true
		})
	}
}

func newFlowFunc(info *types.Info, body *ast.BlockStmt, sig *types.Signature) *flowFunc {
	f := &flowFunc{info: info, body: body, sig: sig}
	if sig.Recv() != nil {
		f.params = append(f.params, sig.Recv())
	}
	for p := range sig.Params().Variables() {
		f.params = append(f.params, p)
	}
	for range sig.Results().Len() {
		f.results = append(f.results, labelSet{})
		f.returns = append(f.returns, map[*flowFunc]bool{})
	}
	return f
}

// run returns the places where a mapping is written to.
func (a *byteFlow) run() []finding {
	for a.changed = true; a.changed; {
		a.changed = false
		a.pass()
		a.spread()
	}
	a.reporting, a.sources = true, 0
	a.pass()
	slices.SortFunc(a.findings, func(x, y finding) int {
		return cmp.Or(strings.Compare(x.Filename, y.Filename), x.Line-y.Line, x.Column-y.Column)
	})
	return slices.Compact(a.findings)
}

func (a *byteFlow) pass() {
	for _, f := range slices.Collect(maps.Values(a.funcs)) {
		if f.body != nil {
			(&flowBody{byteFlow: a, flowFunc: f}).walk(f.body)
		}
	}
	for _, p := range a.packages {
		b := &flowBody{byteFlow: a, flowFunc: &flowFunc{info: p.info}}
		for _, init := range p.info.InitOrder {
			for _, v := range init.Lhs {
				b.assignTo(v, init.Rhs)
			}
		}
	}
}

// spread finds the objects that may hold a mapping.
func (a *byteFlow) spread() {
	for again := true; again; {
		again = false
		for object, labels := range a.labels {
			if !a.mapped[object] && a.isMapping(labels) {
				a.mapped[object] = true
				again, a.changed = true, true
			}
		}
	}
}

func (a *byteFlow) isMapping(labels labelSet) bool {
	for l := range labels {
		if a.mapped[l] {
			return true
		}
	}
	return false
}

func (a *byteFlow) addLabels(to types.Object, labels labelSet) {
	if a.labels[to] == nil {
		a.labels[to] = labelSet{}
	}
	a.merge(a.labels[to], labels)
}

func (a *byteFlow) merge(to, from labelSet) {
	for l := range from {
		if !to[l] {
			to[l] = true
			a.changed = true
		}
	}
}

func (a *byteFlow) bind(to types.Object, functions map[*flowFunc]bool) {
	if a.bound[to] == nil {
		a.bound[to] = map[*flowFunc]bool{}
	}
	a.mergeFuncs(a.bound[to], functions)
}

func (a *byteFlow) mergeFuncs(to, from map[*flowFunc]bool) {
	for f := range from {
		if !to[f] {
			to[f] = true
			a.changed = true
		}
	}
}

// flowBody walks one function. The literals in it are functions of their own,
// but share its variables.
type flowBody struct {
	*byteFlow
	*flowFunc
}

func (b *flowBody) walk(body ast.Node) {
	ast.Inspect(body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncLit:
			return false
		case *ast.AssignStmt:
			b.assignment(n)
		case *ast.IncDecStmt:
			b.write(n.X)
		case *ast.ValueSpec:
			b.valueSpec(n)
		case *ast.RangeStmt:
			b.rangeStmt(n)
		case *ast.SendStmt:
			b.assign(n.Chan, b.of(n.Value), b.functions(n.Value))
		case *ast.ReturnStmt:
			b.returnStmt(n)
		case *ast.CallExpr:
			b.call(n)
		case *ast.CompositeLit:
			b.literal(n)
		case *ast.TypeSwitchStmt:
			b.typeSwitch(n)
		}
		return true
	})
}

func (b *flowBody) assignment(s *ast.AssignStmt) {
	if s.Tok != token.ASSIGN && s.Tok != token.DEFINE {
		b.write(s.Lhs[0])
		return
	}
	for i, lhs := range s.Lhs {
		if s.Tok == token.ASSIGN {
			b.write(lhs)
		}
		if len(s.Lhs) == len(s.Rhs) {
			b.assign(lhs, b.of(s.Rhs[i]), b.functions(s.Rhs[i]))
		} else {
			labels, functions := b.component(s.Rhs[0], i)
			b.assign(lhs, labels, functions)
		}
	}
}

func (b *flowBody) valueSpec(s *ast.ValueSpec) {
	for i, name := range s.Names {
		switch {
		case len(s.Values) == len(s.Names):
			b.assign(name, b.of(s.Values[i]), b.functions(s.Values[i]))
		case len(s.Values) == 1:
			labels, functions := b.component(s.Values[0], i)
			b.assign(name, labels, functions)
		}
	}
}

func (b *flowBody) rangeStmt(s *ast.RangeStmt) {
	labels := b.of(s.X)
	for _, v := range []ast.Expr{s.Key, s.Value} {
		if v == nil {
			continue
		}
		if s.Tok == token.ASSIGN {
			b.write(v)
		}
		b.assign(v, labels, b.functions(s.X))
	}
}

func (b *flowBody) returnStmt(s *ast.ReturnStmt) {
	if b.sig == nil {
		return
	}
	for i := range b.results {
		switch {
		case len(s.Results) == len(b.results):
			b.merge(b.results[i], b.of(s.Results[i]))
			b.mergeFuncs(b.returns[i], b.functions(s.Results[i]))
		case len(s.Results) == 1:
			labels, functions := b.component(s.Results[0], i)
			b.merge(b.results[i], labels)
			b.mergeFuncs(b.returns[i], functions)
		default: // named results
			b.merge(b.results[i], b.variable(b.sig.Results().At(i)))
		}
	}
}

func (b *flowBody) typeSwitch(s *ast.TypeSwitchStmt) {
	assign, ok := s.Assign.(*ast.AssignStmt)
	if !ok {
		return
	}
	labels := b.of(assign.Rhs[0])
	for _, clause := range s.Body.List {
		if v := b.info.Implicits[clause]; v != nil && carries(v.Type()) {
			b.addLabels(v, labels)
		}
	}
}

// literal gives the labels of what is put into a struct to its fields, for those
// that use it through a pointer.
func (b *flowBody) literal(l *ast.CompositeLit) {
	fields, ok := structOf(b.info.TypeOf(l))
	if !ok {
		return
	}
	for i, element := range l.Elts {
		if pair, ok := element.(*ast.KeyValueExpr); ok {
			if field := b.info.Uses[pair.Key.(*ast.Ident)]; field != nil {
				b.assignTo(field, pair.Value)
			}
			continue
		}
		b.assignTo(fields.Field(i), element)
	}
}

func structOf(t types.Type) (*types.Struct, bool) {
	if p, ok := t.Underlying().(*types.Pointer); ok {
		t = p.Elem()
	}
	s, ok := t.Underlying().(*types.Struct)
	return s, ok
}

func (b *flowBody) assignTo(v types.Object, value ast.Expr) {
	if carries(v.Type()) {
		b.addLabels(origin(v), b.of(value))
	}
	b.bind(origin(v), b.functions(value))
}

// assign gives labels to what the left side is.
func (b *flowBody) assign(lhs ast.Expr, labels labelSet, functions map[*flowFunc]bool) {
	object := b.root(lhs)
	if object == nil {
		return
	}
	if t := b.info.TypeOf(lhs); t == nil || carries(t) {
		b.addLabels(object, labels)
		if e, ok := ast.Unparen(lhs).(*ast.SelectorExpr); ok && !isPointer(b.info.TypeOf(e.X)) {
			b.assign(e.X, labels, nil) // the struct that is used by value
		}
	}
	b.bind(object, functions)
}

func isPointer(t types.Type) bool {
	if t == nil {
		return false
	}
	_, ok := t.Underlying().(*types.Pointer)
	return ok
}

// root is the variable or field that holds what an expression leads to.
func (b *flowBody) root(e ast.Expr) types.Object {
	switch e := e.(type) {
	case *ast.ParenExpr:
		return b.root(e.X)
	case *ast.IndexExpr:
		return b.root(e.X)
	case *ast.StarExpr:
		return b.root(e.X)
	case *ast.SelectorExpr:
		return origin(b.info.Uses[e.Sel])
	case *ast.Ident:
		if v := b.info.Defs[e]; v != nil {
			return v
		}
		return origin(b.info.Uses[e])
	}
	return nil
}

// origin is the field or method of the generic type, whatever the instance.
func origin(o types.Object) types.Object {
	switch o := o.(type) {
	case *types.Var:
		return o.Origin()
	case *types.Func:
		return o.Origin()
	}
	return o
}

// write notes a store to what lhs denotes.
func (b *flowBody) write(lhs ast.Expr) {
	switch e := ast.Unparen(lhs).(type) {
	case *ast.IndexExpr:
		// An element that is itself a reference is a place in some container,
		// not in a mapping.
		if !carries(b.info.TypeOf(e)) {
			b.writeTo(e.X, e.Pos())
		}
	case *ast.StarExpr:
		if !carries(b.info.TypeOf(e)) {
			b.writeTo(e.X, e.Pos())
		}
	case *ast.SelectorExpr:
		if selection := b.info.Selections[e]; selection != nil && selection.Kind() == types.FieldVal {
			// A pointer to a struct that holds references does not point into a
			// mapping, and has no labels.
			if isPointer(b.info.TypeOf(e.X)) {
				b.writeTo(e.X, e.Pos())
			} else if !carries(b.info.TypeOf(e.X)) {
				b.write(e.X)
			}
		}
	}
}

// writeTo notes a store to the bytes that e refers to.
func (b *flowBody) writeTo(e ast.Expr, pos token.Pos) { b.writeLabels(b.of(e), pos) }

func (b *flowBody) writeLabels(labels labelSet, pos token.Pos) {
	for l := range labels {
		if slices.Contains(b.params, l) {
			if !b.written[l] {
				b.written[l] = true
				b.changed = true
			}
			continue // reported where the mapping is handed over
		}
		if b.reporting && b.mapped[l] {
			b.findings = append(b.findings, finding{b.fset.Position(pos), b.name})
		}
	}
}

// of returns the labels of an expression.
func (b *flowBody) of(e ast.Expr) labelSet {
	if t := b.info.TypeOf(e); t == nil || !carries(t) {
		return nil
	}
	switch e := e.(type) {
	case *ast.ParenExpr:
		return b.of(e.X)
	case *ast.Ident:
		if object := b.info.ObjectOf(e); object != nil {
			return b.variable(origin(object))
		}
	case *ast.SelectorExpr:
		object := origin(b.info.Uses[e.Sel])
		if v, ok := object.(*types.Var); ok && v.IsField() && !isPointer(b.info.TypeOf(e.X)) {
			return b.of(e.X)
		}
		return b.variable(object)
	case *ast.IndexExpr:
		return b.of(e.X)
	case *ast.SliceExpr:
		if labels := b.of(e.X); labels != nil {
			return labels
		}
		return b.addressOf(e.X) // an array
	case *ast.StarExpr:
		return union(fieldsOf(b.info.TypeOf(e)), b.of(e.X))
	case *ast.TypeAssertExpr:
		return b.of(e.X)
	case *ast.UnaryExpr:
		if e.Op == token.AND {
			return b.addressOf(e.X)
		}
		return b.of(e.X) // receive
	case *ast.CompositeLit:
		return b.elements(e)
	case *ast.CallExpr:
		labels, _ := b.result(e, 0)
		return labels
	}
	return nil
}

// fieldsOf returns the labels of a struct that was read through a pointer.
func fieldsOf(t types.Type) labelSet {
	labels := labelSet{}
	if s, ok := t.Underlying().(*types.Struct); ok {
		for field := range s.Fields() {
			labels[origin(field)] = true
		}
	}
	return labels
}

// argument returns the labels of what is passed to a parameter. A method of a
// struct may be called through a pointer.
func (b *flowBody) argument(param types.Object, arg ast.Expr) labelSet {
	if t := b.info.TypeOf(arg); isPointer(t) && !isPointer(param.Type()) && !types.IsInterface(param.Type()) {
		return fieldsOf(t.Underlying().(*types.Pointer).Elem())
	}
	return b.of(arg)
}

// addressOf returns the labels of the memory in which e lies: &s[i], &p.f and
// a[:] point into what s, p and a refer to.
func (b *flowBody) addressOf(e ast.Expr) labelSet {
	if t := b.info.TypeOf(e); t != nil && !carries(types.NewPointer(t)) {
		return nil
	}
	switch e := ast.Unparen(e).(type) {
	case *ast.IndexExpr:
		return b.of(e.X)
	case *ast.SelectorExpr:
		if labels := b.of(e); labels != nil {
			return labels
		}
		return b.of(e.X)
	}
	return b.of(e)
}

// variable returns the labels of a variable. Fields, package variables and the
// parameters of any function stand for themselves.
func (b *flowBody) variable(object types.Object) labelSet {
	v, ok := object.(*types.Var)
	if !ok {
		return nil
	}
	labels := b.labels[v]
	if v.IsField() || v.Pkg() != nil && v.Parent() == v.Pkg().Scope() || v.Kind() == types.ParamVar || v.Kind() == types.RecvVar {
		return union(labelSet{v: true}, labels)
	}
	return labels
}

func union(x, y labelSet) labelSet {
	for l := range y {
		x[l] = true
	}
	return x
}

// elements returns the labels of what a struct, slice, array or map is made of.
func (b *flowBody) elements(l *ast.CompositeLit) labelSet {
	all := labelSet{}
	for _, element := range l.Elts {
		if pair, ok := element.(*ast.KeyValueExpr); ok {
			element = pair.Value
		}
		all = union(all, b.of(element))
	}
	return all
}

// component returns the labels and functions of one value of a call, or of the
// first of a comma-ok expression.
func (b *flowBody) component(e ast.Expr, i int) (labelSet, map[*flowFunc]bool) {
	if call, ok := ast.Unparen(e).(*ast.CallExpr); ok {
		return b.result(call, i)
	}
	if i > 0 {
		return nil, nil
	}
	switch e := ast.Unparen(e).(type) { // their type is a pair here
	case *ast.IndexExpr:
		return b.of(e.X), nil
	case *ast.TypeAssertExpr:
		return b.of(e.X), nil
	case *ast.UnaryExpr:
		return b.of(e.X), nil
	}
	return nil, nil
}

// functions returns the functions that an expression may be.
func (b *flowBody) functions(e ast.Expr) map[*flowFunc]bool {
	t := b.info.TypeOf(e)
	if t == nil {
		return nil
	}
	switch e := ast.Unparen(e).(type) {
	case *ast.FuncLit:
		return map[*flowFunc]bool{b.funcs[e]: true}
	case *ast.Ident:
		return b.functionsOf(b.info.Uses[e])
	case *ast.SelectorExpr:
		return b.functionsOf(b.info.Uses[e.Sel])
	case *ast.IndexExpr:
		return b.functions(e.X)
	case *ast.CallExpr:
		_, functions := b.result(e, 0)
		return functions
	}
	return nil
}

func (b *flowBody) functionsOf(object types.Object) map[*flowFunc]bool {
	object = origin(object)
	f := b.funcs[object]
	if fn, ok := object.(*types.Func); ok && f == nil {
		f = b.external(fn)
	}
	if f != nil {
		return map[*flowFunc]bool{f: true}
	}
	return b.bound[object]
}

// external stands for a function outside the program that is used as a value.
func (a *byteFlow) external(fn *types.Func) *flowFunc {
	f := newFlowFunc(nil, nil, fn.Signature())
	for i, param := range f.params {
		a.written[param] = !readers[fn.FullName()] && (i > 0 || fn.Signature().Recv() == nil)
	}
	a.funcs[fn] = f
	return f
}

// carries reports whether a value of the type can refer to the bytes of a
// mapping. A pointer to a struct that does so itself cannot: no mapping holds
// references, and what the fields refer to is known by the field.
func carries(t types.Type) bool { return carriesIn(t, nil) }

func carriesIn(t types.Type, within []types.Type) bool {
	switch u := t.Underlying().(type) {
	case *types.Slice, *types.Map, *types.Interface, *types.Chan:
		return true
	case *types.Pointer:
		s, ok := u.Elem().Underlying().(*types.Struct)
		return !ok || !slices.Contains(within, types.Type(s)) && !carriesIn(s, within)
	case *types.Array:
		return carriesIn(u.Elem(), within)
	case *types.Struct:
		within = append(within, u)
		for field := range u.Fields() {
			if carriesIn(field.Type(), within) {
				return true
			}
		}
	case *types.Basic:
		return u.Kind() == types.UnsafePointer
	}
	return false
}

// callee is what a call may call.
type callee struct {
	functions map[*flowFunc]bool // in the program
	external  string             // the name, when it is outside
	source    bool               // Bytes() of a Space
	receiver  ast.Expr
}

// resolve finds out what a call calls.
func (b *flowBody) resolve(call *ast.CallExpr) callee {
	fun := ast.Unparen(call.Fun)
	if index, ok := fun.(*ast.IndexExpr); ok { // an instance of a generic function
		if _, isType := b.info.TypeOf(index.X).(*types.Signature); isType {
			fun = ast.Unparen(index.X)
		}
	}
	var c callee
	var object types.Object
	switch e := fun.(type) {
	case *ast.Ident:
		object = b.info.Uses[e]
	case *ast.SelectorExpr:
		object = b.info.Uses[e.Sel]
		if selection := b.info.Selections[e]; selection != nil && selection.Kind() == types.MethodVal {
			c.receiver = e.X
			c.source = b.isSource(selection)
		}
	default:
		c.functions = b.functions(fun)
		return c
	}
	object = origin(object)
	if fn, ok := object.(*types.Func); ok {
		c.functions = b.implementations(fn)
		if len(c.functions) == 0 {
			c.external = fn.FullName()
		}
		return c
	}
	c.functions = b.bound[object]
	return c
}

func (b *flowBody) isSource(s *types.Selection) bool {
	if s.Obj().Name() != "Bytes" {
		return false
	}
	t := s.Recv()
	return types.Implements(t, b.space) || types.Implements(types.NewPointer(t), b.space)
}

// implementations are the functions of the program that a call of fn may reach.
func (b *flowBody) implementations(fn *types.Func) map[*flowFunc]bool {
	if f := b.funcs[fn]; f != nil && f.body != nil {
		return map[*flowFunc]bool{f: true}
	}
	recv := fn.Signature().Recv()
	if recv == nil {
		return nil
	}
	iface, ok := recv.Type().Underlying().(*types.Interface)
	if !ok {
		return nil
	}
	all := map[*flowFunc]bool{}
	for _, named := range b.named {
		if types.IsInterface(named) || named.TypeParams() != nil {
			continue
		}
		pointer := types.NewPointer(named)
		if !types.Implements(pointer, iface) {
			continue
		}
		method, _, _ := types.LookupFieldOrMethod(pointer, false, fn.Pkg(), fn.Name())
		if f := b.funcs[origin(method)]; f != nil {
			all[f] = true
		}
	}
	return all
}

// arguments pairs what is passed with the parameters of f.
func (f *flowFunc) arguments(c callee, call *ast.CallExpr) []ast.Expr {
	var args []ast.Expr
	if f.sig.Recv() != nil && c.receiver != nil {
		args = append(args, c.receiver)
	} else if f.sig.Recv() != nil && len(call.Args) < len(f.params) {
		args = append(args, nil) // a method value: its receiver was bound before
	}
	return append(args, call.Args...)
}

func (f *flowFunc) param(i int) types.Object {
	return f.params[min(i, len(f.params)-1)] // the last one may be variadic
}

// call notes what a call does to its arguments.
func (b *flowBody) call(call *ast.CallExpr) {
	if tv := b.info.Types[call.Fun]; tv.IsType() {
		return
	}
	if name := b.builtinName(call); name != "" {
		b.builtin(name, call)
		return
	}
	c := b.resolve(call)
	if c.source {
		b.sources++
		return
	}
	for f := range c.functions {
		for i, arg := range f.arguments(c, call) {
			if arg == nil || len(f.params) == 0 {
				continue
			}
			b.handOver(f.param(i), arg, call)
		}
	}
	if c.external != "" && !readers[c.external] && !isPersister(c.external) {
		for _, arg := range call.Args {
			if !movers[c.external] || !b.holdsReferences(arg) {
				b.writeTo(arg, call.Pos())
			}
		}
	}
}

// holdsReferences reports whether e is a slice whose elements are references.
func (b *flowBody) holdsReferences(e ast.Expr) bool {
	s, ok := b.info.TypeOf(e).Underlying().(*types.Slice)
	return ok && carries(s.Elem())
}

// isPersister: the way that a mapping may be written.
func isPersister(name string) bool {
	return strings.HasPrefix(name, "("+modulePath+"/pkg/pmem.Persister).") ||
		strings.HasPrefix(name, "("+modulePath+"/pkg/nvfs/layout.Writer).")
}

// handOver passes one argument to a parameter.
func (b *flowBody) handOver(param types.Object, arg ast.Expr, call *ast.CallExpr) {
	b.bind(param, b.functions(arg))
	if !carries(param.Type()) && !isTypeParam(param.Type()) {
		return
	}
	labels := b.argument(param, arg)
	if b.written[param] {
		b.writeLabels(labels, call.Pos())
	}
	// What the function puts into a field, or hands to a callback, is that of
	// any of its callers.
	if b.isMapping(labels) && !b.mapped[param] {
		b.mapped[param] = true
		b.changed = true
	}
}

func isTypeParam(t types.Type) bool {
	_, ok := t.(*types.TypeParam)
	return ok
}

// builtinName is the name of a function of the language or of package unsafe.
func (b *flowBody) builtinName(call *ast.CallExpr) string {
	var id *ast.Ident
	switch e := ast.Unparen(call.Fun).(type) {
	case *ast.Ident:
		id = e
	case *ast.SelectorExpr:
		id = e.Sel
	}
	if _, builtin := b.info.Uses[id].(*types.Builtin); builtin {
		return id.Name
	}
	return ""
}

func (b *flowBody) builtin(name string, call *ast.CallExpr) {
	switch name {
	case "copy", "clear", "append":
		if !b.holdsReferences(call.Args[0]) {
			b.writeTo(call.Args[0], call.Pos())
		} else if name == "copy" {
			b.assign(call.Args[0], b.of(call.Args[1]), nil)
		}
	}
}

// result returns the labels and functions of one result of a call.
func (b *flowBody) result(call *ast.CallExpr, i int) (labelSet, map[*flowFunc]bool) {
	if tv := b.info.Types[call.Fun]; tv.IsType() {
		if carries(tv.Type) && len(call.Args) == 1 {
			return b.of(call.Args[0]), b.functions(call.Args[0])
		}
		return nil, b.functions(call.Args[0])
	}
	if name := b.builtinName(call); name != "" {
		return b.builtinResult(name, call), nil
	}
	c := b.resolve(call)
	if c.source {
		return labelSet{mapping: true}, nil
	}
	labels, functions := labelSet{}, map[*flowFunc]bool{}
	for f := range c.functions {
		if i < len(f.results) && !b.isCopy(f, call) {
			labels = union(labels, b.substitute(f, f.results[i], f.arguments(c, call)))
			for g := range f.returns[i] {
				functions[g] = true
			}
		}
	}
	if c.external != "" && !fresh[c.external] {
		for _, arg := range call.Args {
			labels = union(labels, b.of(arg))
		}
	}
	return labels, functions
}

// isCopy reports whether the call is one of copies.
func (b *flowBody) isCopy(f *flowFunc, call *ast.CallExpr) bool {
	flag := copies[f.name]
	if flag == "" {
		return false
	}
	for i := range call.Args {
		if value := b.info.Types[call.Args[i]].Value; f.sig.Params().At(i).Name() == flag {
			return value != nil && constant.BoolVal(value)
		}
	}
	return false
}

// substitute puts the labels of the arguments in place of the parameters.
func (b *flowBody) substitute(f *flowFunc, labels labelSet, args []ast.Expr) labelSet {
	out := labelSet{}
	for l := range labels {
		if !slices.Contains(f.params, l) {
			out[l] = true
			continue
		}
		for i, arg := range args {
			if arg != nil && f.param(i) == l {
				out = union(out, b.argument(l, arg))
			}
		}
	}
	return out
}

func (b *flowBody) builtinResult(name string, call *ast.CallExpr) labelSet {
	switch name {
	case "append":
	case "Add", "Slice", "SliceData":
		return b.of(call.Args[0])
	default:
		return nil
	}
	labels := union(labelSet{}, b.of(call.Args[0]))
	for _, arg := range call.Args[1:] {
		if call.Ellipsis.IsValid() && !b.holdsReferences(arg) {
			continue // the bytes are copied
		}
		labels = union(labels, b.of(arg))
	}
	return labels
}
