package icebergstream;

import java.util.Map;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.types.DataType;
import scala.Product;
import scala.collection.Iterable;
import scala.collection.Iterator;

/**
 * Visits everything that a plan consists of: not only its children, but all fields of its nodes, in
 * which Spark keeps subqueries, common table expressions, actions and options.
 */
abstract class PlanVisitor {
  /** Check a node; its fields are visited afterwards. */
  abstract void check(LogicalPlan node);

  abstract void check(Expression expression);

  /** Check what is neither a plan nor an expression. */
  void check(Object value) {}

  final void visit(Object value) {
    if (value instanceof DataType || value instanceof String) {
      return;
    }
    if (value instanceof LogicalPlan) {
      check((LogicalPlan) value);
    } else if (value instanceof Expression) {
      check((Expression) value);
    } else {
      check(value);
    }
    if (value instanceof Product) {
      visitAll(((Product) value).productIterator());
    } else if (value instanceof Iterable) {
      visitAll(((Iterable<?>) value).iterator());
    } else if (value instanceof Map) {
      ((Map<?, ?>) value).values().forEach(this::visit);
    } else if (value instanceof Object[]) {
      for (Object element : (Object[]) value) {
        visit(element);
      }
    }
  }

  private void visitAll(Iterator<?> values) {
    while (values.hasNext()) {
      visit(values.next());
    }
  }

  static NotAllowedException refused(String what) {
    return new NotAllowedException(
        "This server does not run " + what + ", which may reach beyond the catalog.");
  }
}
