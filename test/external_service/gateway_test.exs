# SPDX-License-Identifier: Apache-2.0

defmodule ExternalService.GatewayTest do
  # Not async: it reads what the compiler says on the standard error, which all tests share.
  use ExternalService.Case, async: false
  import ExUnit.CaptureIO

  # Compiled here and not with this file, so that the deprecation is seen by a test and not by everybody.
  defp compile(name, options) do
    source = "defmodule #{inspect(name)} do\n  use ExternalService.Gateway, #{options}\nend"
    warnings = capture_io(:stderr, fn -> Code.compile_string(source) end)
    on_exit(fn -> ExternalService.stop(name) end)
    {name, warnings}
  end

  test "gives the module the functions of a service under their former names" do
    {gateway, _warnings} =
      compile(__MODULE__.Search, "retry: [max_attempts: 2, base: 0], circuit_breaker: [tolerate: 7]")

    start_supervised!(gateway)
    once = [max_attempts: 1]

    assert gateway.external_call(fn -> :fine end) == :fine
    assert {:error, %RetriesExhausted{context: %{attempts: 2}}} = gateway.external_call(fn -> :retry end)
    assert {:error, %{context: %{attempts: 1}}} = gateway.external_call(once, fn -> :retry end)
    assert_raise RetriesExhausted, fn -> gateway.external_call!(fn -> :retry end) end
    assert_raise RetriesExhausted, fn -> gateway.external_call!(once, fn -> :retry end) end
    assert Task.await(gateway.external_call_async(fn -> :fine end)) == :fine
    assert {:error, %{context: %{attempts: 1}}} = Task.await(gateway.external_call_async(once, fn -> :retry end))

    refute gateway.blown?()
    gateway.external_call(once, fn -> :retry end)
    assert gateway.blown?()
    assert gateway.reset_fuse() == :ok
    refute gateway.blown?()
  end

  test "gives it the streams under their former name" do
    {gateway, _warnings} = compile(__MODULE__.Stream, "retry: [max_attempts: 2, base: 0]")
    start_supervised!(gateway)
    assert Enum.to_list(gateway.external_call_async_stream([1], & &1)) == [ok: 1]
    assert Enum.to_list(gateway.external_call_async_stream([1], [ordered: false], & &1)) == [ok: 1]

    for options <- [[[max_attempts: 1]], [[max_attempts: 1], [ordered: false]]] do
      stream = apply(gateway, :external_call_async_stream, [[1] | options] ++ [fn _ -> :retry end])
      assert [ok: {:error, %{context: %{attempts: 1}}}] = Enum.to_list(stream)
    end
  end

  test "gives it today's functions, too, and takes a name" do
    {gateway, _warnings} = compile(__MODULE__.Named, "name: :gateway_of_a_name")
    on_exit(fn -> ExternalService.stop(:gateway_of_a_name) end)
    start_supervised!(gateway)
    assert gateway.call(fn -> :fine end) == :fine
    assert ExternalService.state(:gateway_of_a_name) == :closed
  end

  test "warns that it is deprecated, and of nothing else" do
    {_gateway, warnings} = compile(__MODULE__.Deprecated, "retry: []")
    assert warnings =~ "is deprecated. Use `use ExternalService` instead"
    assert length(String.split(warnings, "warning:")) == 2
  end

  test "refuses the options of version 1 with today's spelling" do
    Process.flag(:trap_exit, true)
    {gateway, _warnings} = compile(__MODULE__.Old, "fuse: [strategy: {:standard, 5, 1_000}, refresh: 5_000]")
    assert {:error, {%ValidationError{key: [:fuse]} = error, _stacktrace}} = gateway.start_link()
    assert Exception.message(error) =~ "`circuit_breaker: [tolerate: 5, within: 1000, reset: 5000]`"
  end
end
