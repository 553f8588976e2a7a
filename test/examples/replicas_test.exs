# SPDX-License-Identifier: Apache-2.0

defmodule ReplicasTest do
  # Runs the demo as a user does, in a mix of its own, but faster. Not together with other tests: it shows shares and
  # rates, which a machine that has other things to do blurs.
  use ExUnit.Case, async: false

  @moduletag timeout: 120_000

  # A row of shares may come between any two notes.
  setup_all do
    {output, status} = run("examples", 6)
    {:ok, output: output, status: status}
  end

  test "the demo ends well, and no call failed", %{output: output, status: status} do
    assert {status, output} == {0, output}
    assert output =~ "No call failed."
    refute output =~ "\e["
  end

  test "shares are even in turn, and the slow server is spared by :least_busy", %{output: output} do
    [in_turn] = numbers(output, ~r/In turn the slow server had (\d+) %/)
    [least_busy] = numbers(output, ~r/the least busy first, it had (\d+) %/)
    assert_in_delta in_turn, 33, 5
    assert least_busy < in_turn
    for share <- shares_after(output, "In turn"), do: assert_in_delta(share, 33, 5)
  end

  test "the server that dies is out after four failures, is probed, and few attempts reach for it", %{output: output} do
    dead = between(output, "b dies", "b is back")
    assert dead =~ ~r/b: \d+ failures in a row, out for \d+ ms/
    assert dead =~ ~r/b: the next call is a probe\n.*b: the probe failed, out for \d+ ms/s
    assert dead =~ ~r/ 0 % open /
    [attempts, answered] = numbers(output, ~r/While b was dead (\d+) attempts reached for it, and (\d+) calls/)
    assert attempts >= 3
    assert attempts * 10 <= answered
  end

  test "the server that is back is found by a probe, and its share grows", %{output: output} do
    assert between(output, "b is back", "In turn the slow") =~ ~r/next call is a probe\n.*b: the probe came back well/s
    [first, last] = numbers(output, ~r/its share grew from (\d+) % to (\d+) %/)
    assert first < last
  end

  @tag :tmp_dir
  test "the demo fails when the dead server is not ejected", %{tmp_dir: tmp_dir} do
    sabotage(tmp_dir, "search.exs", "consecutive: 4", "tolerate: :infinity")
    assert {output, 1} = run(tmp_dir, 3)
    assert output =~ "The dead server was not out, or not probed."
  end

  @tag :tmp_dir
  test "the demo fails when the balancer does not spare the slow server", %{tmp_dir: tmp_dir} do
    sabotage(tmp_dir, "demo.exs", "balancer: :least_busy)\n", "balancer: :random)\n")
    assert {output, 1} = run(tmp_dir, 3)
    assert output =~ "The slow server was not spared, or nothing was gained by it."
  end

  @tag :tmp_dir
  test "the demo fails when calls are not repeated at another server", %{tmp_dir: tmp_dir} do
    sabotage(tmp_dir, "search.exs", "max_attempts: 3", "max_attempts: 1")
    assert {output, 1} = run(tmp_dir, 3)
    assert output =~ ~r/\d+ calls failed, though there were servers that could answer/
  end

  # A copy of the example, with one thing changed.
  defp sabotage(folder, file, text, replacement) do
    File.cp_r!("examples", folder)
    path = Path.join([folder, "replicas", file])
    source = File.read!(path)
    assert source =~ text
    File.write!(path, String.replace(source, text, replacement))
  end

  defp run(folder, seconds) do
    arguments = ["run", "--no-compile", Path.join(folder, "replicas/demo.exs"), "#{seconds}"]
    System.cmd("mix", arguments, env: [{"MIX_ENV", "test"}], stderr_to_stdout: true)
  end

  defp numbers(output, pattern) do
    [_whole | digits] = Regex.run(pattern, output)
    Enum.map(digits, &String.to_integer/1)
  end

  # The shares in the first row after a caption.
  defp shares_after(output, caption) do
    [_whole, row] = Regex.run(~r/#{caption}:.*\n\n(.*)\n/, output)
    assert [_a, _b, _c] = for([_whole, share] <- Regex.scan(~r/(\d+) %/, row), do: String.to_integer(share))
  end

  defp between(output, from, to) do
    [_before, rest] = String.split(output, from, parts: 2)
    [between, _after] = String.split(rest, to, parts: 2)
    between
  end
end
