# SPDX-License-Identifier: Apache-2.0

defmodule Mix.Tasks.ExternalService.MigrateTest do
  use ExUnit.Case, async: false

  alias Mix.Tasks.ExternalService.Migrate

  @moduletag :tmp_dir

  @old "ExternalService.start(:x,\n  fuse_refresh: 5_000)\n"

  setup do
    shell = Mix.shell()
    Mix.shell(Mix.Shell.Process)
    on_exit(fn -> Mix.shell(shell) end)
  end

  defp write(folder, files) do
    for {name, source} <- files do
      path = Path.join(folder, name)
      File.mkdir_p!(Path.dirname(path))
      File.write!(path, source)
    end
  end

  defp status(paths) do
    Migrate.run(paths)
    0
  catch
    :exit, {:shutdown, status} -> status
  end

  defp printed(kind) do
    receive do
      {:mix_shell, ^kind, [text]} -> [text | printed(kind)]
    after
      0 -> []
    end
  end

  test "prints each place with file, line and replacement, changes nothing, and ends with 1", %{tmp_dir: folder} do
    write(folder, [{"lib/a.ex", @old}, {"lib/b.ex", ":fine"}, {"test/c.exs", @old}, {"d.txt", @old}])
    assert status([folder]) == 1
    assert [a, c, summary] = printed(:info)
    assert a == "#{folder}/lib/a.ex:2: fuse_refresh: 5_000\n  circuit_breaker: [reset: 5_000]"
    assert c == "#{folder}/test/c.exs:2: fuse_refresh: 5_000\n  circuit_breaker: [reset: 5_000]"
    assert summary =~ "2 places to change"
    assert File.read!(Path.join(folder, "lib/a.ex")) == @old
  end

  test "takes files and folders, and leaves out deps and _build in a folder", %{tmp_dir: folder} do
    write(folder, [{"a.ex", @old}, {"deps/x/lib/a.ex", @old}, {"_build/dev/a.ex", @old}])
    assert status([folder]) == 1
    assert [_a, summary] = printed(:info)
    assert summary =~ "1 place to change"
    assert status([Path.join(folder, "a.ex"), Path.join(folder, "deps/x")]) == 1
    assert length(printed(:info)) == 3
  end

  test "ends with 0 when there is nothing to change", %{tmp_dir: folder} do
    write(folder, [{"a.ex", ":fine"}])
    assert status([folder]) == 0
    assert printed(:info) == ["There is nothing to change."]
  end

  test "ends with 2 when a file could not be read, and goes on with the others", %{tmp_dir: folder} do
    write(folder, [{"a.ex", "ExternalService.start("}, {"b.ex", @old}])
    assert status([folder]) == 2
    assert [error] = printed(:error)
    assert error =~ "#{folder}/a.ex could not be read: line 1: "
    assert [place, _summary] = printed(:info)
    assert place =~ "b.ex:2"
    File.rm!(Path.join(folder, "b.ex"))
    assert status([folder]) == 2
    assert printed(:info) == []
  end

  test "asks for a path, and for one that is there", %{tmp_dir: folder} do
    assert_raise Mix.Error, ~r/external_service.migrate PATH/, fn -> Migrate.run([]) end
    assert_raise Mix.Error, ~r/no file or folder/, fn -> Migrate.run([Path.join(folder, "none")]) end
  end
end
