{
  description = "poot: an LLM inference engine and server in pure Python that compiles its own kernels";

  inputs.nixpkgs.url = "github:NixOS/nixpkgs/nixos-unstable";

  outputs =
    { self, nixpkgs }:
    let
      systems = [
        "x86_64-linux"
        "aarch64-linux"
      ];
      forEachSystem = make: nixpkgs.lib.genAttrs systems (system: make nixpkgs.legacyPackages.${system});

      # Debian-style wheels look for these by name; nix keeps no global library directory.
      wheelLibraries = pkgs: [
        pkgs.stdenv.cc.cc.lib # libstdc++, libgcc_s
        pkgs.zlib
        pkgs.vulkan-loader # wgpu and vulkan open libvulkan.so.1
      ];

      tools = pkgs: [
        pkgs.python311
        pkgs.uv
        pkgs.just
        pkgs.git
        # LLVM with all targets: `llc --version` lists nvptx and spirv. poot itself uses the LLVM inside
        # of the llvmlite wheel; these tools are for reading and checking what it writes.
        pkgs.llvmPackages.llvm
        pkgs.lld # links AMDGCN objects into code objects
        pkgs.vulkan-loader
        pkgs.vulkan-tools # vulkaninfo
        pkgs.vulkan-validation-layers
        pkgs.spirv-tools # spirv-val, spirv-dis
        pkgs.resvg
      ];

      hook = pkgs: ''
        # uv uses the shell's interpreter and downloads none.
        export UV_PYTHON=${pkgs.python311}/bin/python3
        export UV_PYTHON_DOWNLOADS=never
        # The machine's own GPU driver comes last: NixOS puts it there.
        export LD_LIBRARY_PATH=${pkgs.lib.makeLibraryPath (wheelLibraries pkgs)}:/run/opengl-driver/lib''${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
        export VK_LAYER_PATH=${pkgs.vulkan-validation-layers}/share/vulkan/explicit_layer.d
      '';

      # Peano (AMD's LLVM fork for AIE cores) is not in nixpkgs, and this flake fetches nothing by itself.
      npuHook = ''
        if [ -x "''${PEANO_INSTALL_DIR:-}/bin/clang" ]; then
          export PATH="$PEANO_INSTALL_DIR/bin:$PATH"
        else
          echo "npu shell: PEANO_INSTALL_DIR names no compiler, so 'just npu-build' cannot compile." >&2
          echo "Install Peano and set it, or set POOT_ALLOW_NO_NPU_SHELL=1 to say that there is none." >&2
        fi
      '';
    in
    {
      devShells = forEachSystem (pkgs: {
        default = pkgs.mkShell {
          packages = tools pkgs;
          shellHook = hook pkgs;
        };
        npu = pkgs.mkShell {
          packages = tools pkgs;
          shellHook = hook pkgs + npuHook;
        };
      });

      formatter = forEachSystem (pkgs: pkgs.nixfmt-rfc-style);
    };
}
