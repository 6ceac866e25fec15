"""Compiles `values` for narrow values and sm_90, without a GPU; prints registers that are unset."""

import json
from typing import Any

import torch
from benchmarks.machine_code import compiled, unset_registers

from saccade.ops._triton.launch import Launch
from saccade.ops.taylor.triton import shapes
from saccade.ops.taylor.triton.efficient import run_efficient, run_in_parts
from saccade.ops.taylor.triton.shapes import Problem

SHAPES = ((40, 32, True),)  # the columns of narrower values are padded to 32

# From `values` with D = 64 and E = 16, as ptxas 12.8 compiles it: UR46 is never written.
MISCOMPILED = """
        /*0000*/                   ULDC.64 UR10, c[0x0][0x258] ;
        /*0010*/                   ULDC UR5, c[0x0][0x260] ;
        /*0020*/              @!UP0 UMOV UR8, UR5 ;
        /*0030*/                   R2UR UR45, R2 ;
        /*0050*/                   S2UR UR47, SR_CTAID.Y ;
        /*1a50*/                   USGXT.U32 UR8, UR8, 0xe ;
        /*5a30*/                   UIMAD.WIDE.U32 UR12, UR47, UR11, URZ ;
        /*5db0*/                   UIADD3 UR20, UP0, UR46, 0x2, URZ ;
        /*5ec0*/                   UIADD3.X UR21, UR46, -0x7fffffe0, URZ, UP0, !UPT ;
        /*6b70*/                   USGXT.U32 UR22, UR5, 0xe ;
        /*6ba0*/                   UMOV UR23, URZ ;
        /*70b0*/                   HGMMA.64x16x16.F32.BF16 R24, gdesc[UR20].tnspB, R24 ;
        /*7760*/                   STSM.16.M88.4 [R16+UR10], R20 ;
        /*7970*/                   EXIT ;
"""
# The first matrix of a product has an address, UR20 and UR21, only where it is in shared memory.
ADDRESS_MISSING = MISCOMPILED.replace("UIADD3 UR20", "UIADD3 UR30")
PLANTED = (
    MISCOMPILED,
    MISCOMPILED.replace("UR46", "UR8"),
    ADDRESS_MISSING.replace("R24, gdesc", "R24, R72, gdesc"),
    ADDRESS_MISSING,
)


def main() -> None:
    found: dict[str, Any] = {"planted": [unset_registers(listing) for listing in PLANTED]}

    def compile_instead(launch: Launch, *tensors: Any) -> None:
        if launch.kernel.__name__ == "values":
            found[f"values {len(found)}"] = compiled(launch, tensors).unset

    Launch.__call__ = compile_instead  # type: ignore[method-assign]
    Launch.compile = lambda launch, dtypes: None  # type: ignore[method-assign]
    shapes.capability = lambda device: (9, 0)
    for dim, width, masked in SHAPES:
        q, v = (torch.zeros(1, 12, 64, n, dtype=torch.bfloat16) for n in (dim, width))
        mask = torch.ones(1, 64, dtype=torch.bool) if masked else None
        numbers = dim**-0.5, 0.5, 1.0, 1.0, True
        normalized = Problem.of(q, q, v, mask, torch.ones(12), *numbers, "ieee")
        plain = Problem.of(q, q, v, mask, None, *numbers, "ieee")
        run_efficient(normalized)
        run_in_parts(normalized, keep=False)
        run_in_parts(plain, keep=False)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
