package controller

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Reasons of events. Users and alerts match on them: they never change.
const (
	ReasonInvalidParameters   = "InvalidParameters"
	ReasonImmediateBinding    = "ImmediateBinding"
	ReasonFlushModeNotOffered = "FlushModeNotOffered"
	ReasonNUMANodeNotFound    = "NUMANodeNotFound"
	ReasonNoMemory            = "NoPersistentMemory"
	ReasonTooLarge            = "LargerThanAnyExtent"
	ReasonNotBeside           = "DoesNotFitBesideOthers"
	ReasonNodeGone            = "NodeGone"
	ReasonNotServed           = "VolumeNotServed"
	ReasonOrphanVolume        = "OrphanVolume"
	ReasonRemoteMemory        = "RemoteMemory"
	ReasonNotAligned          = "NotAligned"
	ReasonSeveralNUMANodes    = "SeveralNUMANodes"
	ReasonAlignmentRefused    = "AlignmentRefused"
	ReasonRescheduled         = "Rescheduled"
)

// toldOnce are reasons that are told once of an object, as long as they hold. Of
// nothing that they say would anybody who knows it want to hear again.
var toldOnce = map[string]bool{ReasonRemoteMemory: true, ReasonNotAligned: true, ReasonSeveralNUMANodes: true, ReasonAlignmentRefused: true}

// normal are reasons that are no warnings.
var normal = map[string]bool{ReasonNotAligned: true, ReasonRescheduled: true}

// finding is something that a user should know about an object.
type finding struct {
	object  corev1.ObjectReference
	reason  string
	message string // what is wrong and what to do about it
}

// key identifies a finding that stays the same.
func (f finding) key() string {
	if toldOnce[f.reason] { // pods may come and go in its message
		return string(f.object.UID) + "/" + f.object.Kind + "/" + f.object.Namespace + "/" + f.object.Name + "/" + f.reason
	}
	return string(f.object.UID) + "/" + f.object.Kind + "/" + f.object.Name + "/" + f.reason + "/" + f.message
}

func reference(apiVersion, kind, namespace, name string, uid types.UID) corev1.ObjectReference {
	return corev1.ObjectReference{APIVersion: apiVersion, Kind: kind, Namespace: namespace, Name: name, UID: uid}
}
