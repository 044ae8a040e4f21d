(* The network of radix.v in Coq's computable rational numbers.

   `exact_rationals` is the second arithmetic that radix.v's definitions are read in. The test
   tests/slow/test_proofs.py appends one `Eval vm_compute` for each input and compares the numbers with the network
   that Python builds. *)

From Coq Require Import QArith List.
From mathcomp Require Import ssreflect ssrbool ssrnat seq.
Require Import radix.
Import ListNotations.

Definition exact_rationals : arithmetic Q := {|
  plus a b := Qred (a + b);
  minus a b := Qred (a - b);
  times a b := Qred (a * b);
  relu a := if Qle_bool 0 a then a else 0%Q;
  natural n := inject_Z (Z.of_nat n) |}.

(* The entry of rank k of x, as the network computes it, on the grid of `cells` steps. *)
Definition answer (f : form) (k cells : nat) (digits : list (nat * nat)) (bins : nat) (x : list Q) : Q :=
  radix exact_rationals f k cells digits bins (1 # Pos.of_nat cells) x.

(* Five entries of a grid with 16 steps, two digits of four bins: the third smallest is 7 / 16. *)
Example five_entries : answer Pair 3 16 (even_digits 4 2) 4 [9 # 16; 1 # 1; 7 # 16; 0; 2 # 16] = (7 # 16)%Q.
Proof. vm_compute; reflexivity. Qed.
